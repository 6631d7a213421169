-- Deletes a kept answer that has ended. Its log stays for some seconds, its epoch for the answer's whole life.
--
-- KEYS  1 kept:<id>  2 log:<id>  3 kept-bytes  4 kept-expiring
-- ARGV  1 id  2 life of the epoch, ms, from now on  3 life of the log, ms
local key = redis.call('HGET', KEYS[1], 'key')
if key then release(ARGV[1], key) end
redis.call('HDEL', KEYS[1], 'record', 'key', 'chat', 'elsewhere')
redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
