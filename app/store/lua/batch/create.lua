-- Writes a new batch down: all of it or nothing.
--
-- KEYS  1 batch:<id>  2 batches-of:<key>  3 batches
-- ARGV  1 id  2 Order (msgpack)  3 seconds since the epoch  4 when its time is over  5 of which time on batches may be known
-- Sent twice, the second changes nothing, however far it is by then.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'order', ARGV[2], 'status', 'validating')
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[5])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[1])
return 1
