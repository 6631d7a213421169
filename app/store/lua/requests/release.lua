-- Releases one run's prefill at a worker; at its end also its reservation and its record. Sent twice, the second
-- changes nothing.
--
-- KEYS  1 request:<run>  2 reservations:<worker>  3 load:<worker>  4 prefilling:<worker>  5 prefix:<run>
-- ARGV  1 run  2 'prefilled' when it continues here, 'left' when it continues on another worker, else 'ended'
-- returns 1 when there was a reservation, else 0
if ARGV[2] == 'ended' then
  redis.call('UNLINK', KEYS[1])
end
local held = redis.call('HGET', KEYS[2], ARGV[1])
if not held then
  return 0
end
local blocks, tokens, rank, pulls = string.match(held, '(%d+),(%d+),(%d+a?),?(%d*)')
if redis.call('HDEL', KEYS[4], ARGV[1]) == 1 then
  if ARGV[2] ~= 'left' then
    redis.call('UNLINK', KEYS[5])
  end
  redis.call('HINCRBY', KEYS[3], 'waiting.' .. rank, -1)
  redis.call('HINCRBY', KEYS[3], 'pulls.' .. rank, 0 - (tonumber(pulls) or 0))
  if tokens ~= '0' then
    redis.call('HINCRBY', KEYS[3], 'tokens.' .. rank, -tokens)
    local clock = redis.call('TIME')
    redis.call('HSET', KEYS[3], 'since.' .. rank, clock[1] * 1000 + math.floor(clock[2] / 1000))
  end
end
if ARGV[2] ~= 'prefilled' then
  redis.call('HDEL', KEYS[2], ARGV[1])
  redis.call('HINCRBY', KEYS[3], 'requests.' .. rank, -1)
  redis.call('HINCRBY', KEYS[3], 'blocks.' .. rank, -blocks)
end
return 1
