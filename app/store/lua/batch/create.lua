-- Creates a batch, completely or not at all.
--
-- KEYS  1 batch:<id>  2 batches-of:<key>  3 batches
-- ARGV  1 id  2 BatchOrder (msgpack)  3 when it was created  4 when it expires  5 older batches leave the key's list
--       (3 to 5: seconds since the epoch)
-- Sent twice, the second changes nothing, whatever the batch's state.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'order', ARGV[2], 'status', 'validating')
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[5])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[1])
return 1
