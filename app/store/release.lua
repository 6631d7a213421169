-- Takes one run off one worker's account and drops its record. Doing it twice changes nothing.
--
-- KEYS  1 request:<run>  2 reservations:<worker>  3 load:<worker>      ARGV  1 run
-- returns 1 when the reservation was there, else 0
redis.call('UNLINK', KEYS[1])
local held = redis.call('HGET', KEYS[2], ARGV[1])
if not held then
  return 0
end
local blocks, tokens = string.match(held, '(%d+),(%d+)')
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HINCRBY', KEYS[3], 'requests', -1)
redis.call('HINCRBY', KEYS[3], 'blocks', -blocks)
redis.call('HINCRBY', KEYS[3], 'tokens', -tokens)
return 1
