-- Ends a kept answer instead of its owner, which can't append any more: the epoch is new.
--
-- KEYS  1 kept:<id>  2 log:<id>  3 untold  4 kept-bytes  5 kept-expiring
-- ARGV  1 id  2 the last batch  3 life, ms, from now on  4 when a webhook is due to be told of it, ms; '' of none
-- returns 1; 0 when it had ended before, or is not known
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], 'end') == 1 then
  return 0
end
redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('HSET', KEYS[1], 'end', 'cancelled')
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local last = newest[1] and tonumber(string.match(newest[1][1], '^%d+')) or 0
redis.call('XADD', KEYS[2], (last + 1) .. '-0', 'b', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
if ARGV[4] ~= '' then redis.call('ZADD', KEYS[3], ARGV[4], '0||' .. ARGV[1]) end
local key = redis.call('HGET', KEYS[1], 'key')
if key then
  count(ARGV[1], key, #ARGV[2] + 32)
  expires_in(ARGV[1], key, ARGV[3])
end
return 1
