-- Changes the record of a kept conversation.
--
-- KEYS  1 conversation:<id>  2 conversation-items:<id>  3 kept-bytes  4 kept-expiring
-- ARGV  1 id  2 API key  3 life, ms, from now on  4 record (JSON)
-- returns 1; 0 when that API key has no such conversation (any more)
local key, before = unpack(redis.call('HMGET', KEYS[1], 'key', 'record'))
if key ~= ARGV[2] then return 0 end
count(ARGV[1], key, #ARGV[4] - #before)
redis.call('HSET', KEYS[1], 'record', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
expires_in(ARGV[1], key, ARGV[3])
return 1
