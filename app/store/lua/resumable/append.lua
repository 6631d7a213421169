-- Appends batches of events to a kept answer, if its epoch is still the writer's. Without room for them, nothing of it
-- is kept any more: its log has only an end, which says so.
--
-- KEYS  1 kept:<id>  2 log:<id>  3 kept-of:<api>  4 chats-of:<key>  5 untold  6 kept-bytes  7 kept-expiring
-- ARGV  1 id  2 epoch  3 number of the first batch (from 1)  4 life, ms, from now on; '' as it was
--       5 'ended' when the last batch has the end, else ''  6 when a stored chat that ends with it arrived, ms, else ''
--       7 kept bytes of its API key at most, unless its record says it  8 of all keys at most
--       9 the last batch of one that is not kept any more  10 life of that, ms
--       11 when a webhook is due to be told of its end, ms; '' of none  12… batches
-- returns  the number of the last batch in the log; if less than was sent, send the next ones again.
--          -1: another replica owns it. -4: it was cancelled. -2: Redis does not know it (any more). -3: it is not kept.
-- Sent twice it changes nothing.
local epoch, key, most, ended, owner = unpack(redis.call('HMGET', KEYS[1], 'epoch', 'key', 'most', 'end', 'owner'))
if not epoch then return -2 end
if epoch ~= ARGV[2] then
  -- The writer itself may own it in a later epoch, and has to begin it again.
  if ended or owner ~= string.match(KEYS[3], '[^:]*$') then redis.call('SREM', KEYS[3], ARGV[1]) end
  return ended == 'cancelled' and -4 or -1
end
if ended == 'full' then return -3 end
local function tell()
  if ARGV[11] ~= '' then redis.call('ZADD', KEYS[5], ARGV[11], '0||' .. ARGV[1]) end
end
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local last = newest[1] and tonumber(string.match(newest[1][1], '^%d+')) or 0
local number, bytes = tonumber(ARGV[3]), 0
if number > last + 1 then return last end
local from = 12 + last + 1 - number -- of ARGV: the first batch that the log has not
for i = from, #ARGV do bytes = bytes + #ARGV[i] + 32 end
if key and bytes > 0 and no_room(key, bytes, most or ARGV[7], ARGV[8]) then
  redis.call('UNLINK', KEYS[2])
  redis.call('XADD', KEYS[2], (last + 1) .. '-0', 'b', ARGV[9]) -- whoever has read to `last` reads it, too
  redis.call('HSET', KEYS[1], 'end', 'full')
  redis.call('HDEL', KEYS[1], 'chat')
  redis.call('SREM', KEYS[3], ARGV[1])
  tell()
  release(ARGV[1], key)
  count(ARGV[1], key, redis.call('HSTRLEN', KEYS[1], 'record') + (redis.call('HGET', KEYS[1], 'elsewhere') or 0) + #ARGV[9] + 512)
  redis.call('PEXPIRE', KEYS[1], ARGV[10])
  redis.call('PEXPIRE', KEYS[2], ARGV[10])
  expires_in(ARGV[1], key, ARGV[10])
  return -3
end
for i = from, #ARGV do
  last = last + 1
  redis.call('XADD', KEYS[2], last .. '-0', 'b', ARGV[i])
end
if key and bytes > 0 then count(ARGV[1], key, bytes) end
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[1], 'end', ARGV[5])
  redis.call('SREM', KEYS[3], ARGV[1])
  if ended ~= ARGV[5] then tell() end
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
