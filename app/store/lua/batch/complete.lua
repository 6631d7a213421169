-- Moves a batch without parts left from 'in_progress' to the status in ARGV.
--
-- KEYS  1 batch:<id>  2 todo:<batch>  3 taken:<batch>     ARGV  fields and values to set
-- returns 1; 0 when it is not in progress, or a part has come back meanwhile
if redis.call('HGET', KEYS[1], 'status') ~= 'in_progress' then return 0 end
if redis.call('ZCARD', KEYS[2]) + redis.call('HLEN', KEYS[3]) > 0 then return 0 end
redis.call('HDEL', KEYS[1], 'holder', 'holder_at')
redis.call('HSET', KEYS[1], unpack(ARGV))
return 1
