-- A batch worker gives back the lock of a batch that it validated or finished, if it still has it.
--
-- KEYS  1 batch:<id>     ARGV  1 worker
if redis.call('HGET', KEYS[1], 'holder') == ARGV[1] then redis.call('HDEL', KEYS[1], 'holder', 'holder_at') end
return 1
