-- Gives one request to one worker, all or nothing.
--
-- KEYS  1 worker:<id>  2 request:<run>  3 reservations:<worker>  4 load:<worker>  5 the queue's list
--       6 prefilling:<worker>  7 prefix:<run>
-- ARGV  1 run  2 Job (msgpack)  3 the record's life, ms  4 rank  5 blocks  6 prompt tokens to compute
--       7 Celery message  8 the prompt's packed block hashes
-- returns 1; 0 when the worker's lease is gone, and then nothing was written
-- Sent twice because a connection broke, it does nothing the second time while the record is there.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
if not redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3], 'NX') then
  return 1
end
local rank = ARGV[4]
redis.call('HSET', KEYS[3], ARGV[1], ARGV[5] .. ',' .. ARGV[6] .. ',' .. rank)
redis.call('HINCRBY', KEYS[4], 'requests.' .. rank, 1)
redis.call('HINCRBY', KEYS[4], 'blocks.' .. rank, ARGV[5])
redis.call('HINCRBY', KEYS[4], 'tokens.' .. rank, ARGV[6])
if redis.call('HINCRBY', KEYS[4], 'waiting.' .. rank, 1) == 1 then
  local clock = redis.call('TIME')
  redis.call('HSET', KEYS[4], 'since.' .. rank, clock[1] * 1000 + math.floor(clock[2] / 1000))
end
redis.call('HSET', KEYS[6], ARGV[1], string.sub(ARGV[8], 1, 8) .. rank)
if ARGV[8] ~= '' then
  redis.call('SET', KEYS[7], ARGV[8], 'PX', ARGV[3])
end
redis.call('LPUSH', KEYS[5], ARGV[7])
return 1
