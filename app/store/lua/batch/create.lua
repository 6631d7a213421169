-- Creates a batch, completely or not at all, if there is room for it.
--
-- KEYS  1 batch:<id>  2 batches-of:<key>  3 batches
-- ARGV  1 id  2 BatchOrder (msgpack)  3 when it was created  4 when it expires  5 older batches leave the key's list
--       (3 to 5: seconds since the epoch)  6 the prefix of batch:<id>  7 how many of the key may be unfinished
--       8 how many of all clients  9 how many of the key are kept at most: for a new one, the oldest ended one is removed
-- returns  nothing; or the limit reached: 'key', 'all'. Sent twice, the second changes nothing, whatever the batch's state.
if redis.call('EXISTS', KEYS[1]) == 1 then return false end
if redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[8]) then return 'all' end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[5])
local kept = redis.call('ZCARD', KEYS[2])
if kept >= tonumber(ARGV[7]) then
  local unfinished = 0
  for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    local status, cleaned = unpack(redis.call('HMGET', ARGV[6] .. id, 'status', 'cleaned'))
    local over = cleaned == '1' and kept >= tonumber(ARGV[9]) and not redis.call('ZSCORE', KEYS[3], id)
    if not status or over then
      redis.call('UNLINK', ARGV[6] .. id)
      redis.call('ZREM', KEYS[2], id)
      redis.call('ZREM', KEYS[3], id)
      kept = kept - 1
    elseif cleaned ~= '1' then
      unfinished = unfinished + 1
    end
  end
  if unfinished >= tonumber(ARGV[7]) then return 'key' end
end
redis.call('HSET', KEYS[1], 'order', ARGV[2], 'status', 'validating')
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[1])
return false
