-- Changes the StoredChat of a kept answer.
--
-- KEYS  1 kept:<id>  2 kept-bytes  3 kept-expiring     ARGV  1 id  2 StoredChat (msgpack)
-- returns 1; 0 when it is not known (any more)
local key, before = unpack(redis.call('HMGET', KEYS[1], 'key', 'chat'))
if not before then return 0 end
redis.call('HSET', KEYS[1], 'chat', ARGV[2])
count(ARGV[1], key, #ARGV[2] - #before)
return 1
