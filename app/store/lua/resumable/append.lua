-- Appends batches of events to a kept answer, if its epoch is still the writer's.
--
-- KEYS  1 kept:<id>  2 log:<id>  3 kept-of:<api>  4 chats-of:<key>  5 kept-bytes  6 kept-expiring
-- ARGV  1 id  2 epoch  3 number of the first batch (from 1)  4 life, ms, from now on; '' as it was
--       5 'ended' when the last batch has the end, else ''  6 when a stored chat that ends with it arrived, ms, else ''
--       7… batches
-- returns  the number of the last batch in the log; if less than was sent, send the next ones again.
--          -1: another replica owns it, or it was cancelled. -2: Redis does not know it (any more).
-- Sent twice it changes nothing.
local epoch, key = unpack(redis.call('HMGET', KEYS[1], 'epoch', 'key'))
if not epoch then return -2 end
if epoch ~= ARGV[2] then
  redis.call('SREM', KEYS[3], ARGV[1])
  return -1
end
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local last = newest[1] and tonumber(string.match(newest[1][1], '^%d+')) or 0
local number, bytes = tonumber(ARGV[3]), 0
if number > last + 1 then return last end
for i = 7, #ARGV do
  if number == last + 1 then
    redis.call('XADD', KEYS[2], number .. '-0', 'b', ARGV[i])
    last, bytes = number, bytes + #ARGV[i] + 32
  end
  number = number + 1
end
if key and bytes > 0 then count(ARGV[1], key, bytes) end
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[1], 'end', ARGV[5])
  redis.call('SREM', KEYS[3], ARGV[1])
end
if ARGV[6] ~= '' then
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', ARGV[6] - ARGV[4] - 86400000)
  redis.call('ZADD', KEYS[4], ARGV[6], ARGV[1])
  redis.call('PEXPIRE', KEYS[4], ARGV[4])
end
if ARGV[4] ~= '' then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
  if key then expires_in(ARGV[1], key, ARGV[4]) end
end
return last
