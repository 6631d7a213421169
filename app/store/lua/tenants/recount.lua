-- Sets a number that is counted of clients' bytes, unless it has changed since it was read.
--
-- KEYS  1 a string, or a hash     ARGV  1 the hash's field; '' of a string  2 the number that was read; '' for none
--       3 the right number: without bytes, there is none
-- returns 1; 0 when it has changed
local hash, field = ARGV[1] ~= '', ARGV[1]
local now = hash and redis.call('HGET', KEYS[1], field) or not hash and redis.call('GET', KEYS[1])
if (now or '') ~= ARGV[2] then return 0 end
if ARGV[3] ~= '0' then
  if hash then redis.call('HSET', KEYS[1], field, ARGV[3]) else redis.call('SET', KEYS[1], ARGV[3]) end
elseif hash then
  redis.call('HDEL', KEYS[1], field)
else
  redis.call('UNLINK', KEYS[1])
end
return 1
