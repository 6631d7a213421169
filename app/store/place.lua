-- Gives one request to one worker, all or nothing.
--
-- KEYS  1 worker:<id>  2 request:<run>  3 reservations:<worker>  4 load:<worker>  5 the queue's list
-- ARGV  1 run  2 Job (msgpack)  3 the record's life, ms  4 blocks  5 prompt tokens  6 Celery message
-- returns 1; 0 when the worker's lease is gone, and then nothing was written
-- Sent twice because a connection broke, it does nothing the second time while the record is there.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
if not redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3], 'NX') then
  return 1
end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[4] .. ',' .. ARGV[5])
redis.call('HINCRBY', KEYS[4], 'requests', 1)
redis.call('HINCRBY', KEYS[4], 'blocks', ARGV[4])
redis.call('HINCRBY', KEYS[4], 'tokens', ARGV[5])
redis.call('LPUSH', KEYS[5], ARGV[6])
return 1
