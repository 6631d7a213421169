-- Notes that a process of a wire version lives, unless one lives, or lived lately, that it couldn't be understood by.
--
-- KEYS  1 wire-versions     ARGV  1 the version  2 ms for which one counts after its last word
-- returns the versions that are too far from it: then nothing is noted
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known, strangers = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #known, 2 do
  if now - known[i + 1] > tonumber(ARGV[2]) then
    redis.call('HDEL', KEYS[1], known[i])
  elseif math.abs(known[i] - ARGV[1]) > 1 then
    strangers[#strangers + 1] = tonumber(known[i])
  end
end
if #strangers == 0 then redis.call('HSET', KEYS[1], ARGV[1], now) end
return strangers
