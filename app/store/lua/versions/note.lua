-- Records that a process of a wire version lives, unless one of a version that isn't a neighbour lives or lived lately.
--
-- KEYS  1 wire-versions     ARGV  1 the version  2 ms for which a version counts after its last record
-- returns the versions that aren't neighbours: if there are any, nothing is recorded
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
