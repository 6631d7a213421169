-- Releases one run's prefill at a worker; at its end also its reservation and its record. Sent twice, the second
-- changes nothing.
--
-- KEYS  1 request:<run>  2 reservations:<worker>  3 loads:<pool>  4 prefilling:<worker>  5 starting:<pool>
-- ARGV  1 run  2 'prefilled' when it continues here, 'left' when it continues on another worker, else 'ended'
--       3 worker
-- returns 1 when there was a reservation, else 0
if ARGV[2] == 'ended' then
  redis.call('UNLINK', KEYS[1])
end
local held = redis.call('HGET', KEYS[2], ARGV[1])
if not held then
  return 0
end
local blocks, tokens, rank, pulls = string.match(held, '(%d+),(%d+),(%d+a?),?(%d*)')
local change = {0, 0, 0, 0, 0} -- in the order of `count`
if redis.call('HDEL', KEYS[4], ARGV[1]) == 1 then
  stop(KEYS[5], ARGV[1])
  change[3], change[4], change[5] = -tokens, -1, -(tonumber(pulls) or 0)
end
if ARGV[2] ~= 'prefilled' then
  redis.call('HDEL', KEYS[2], ARGV[1])
  change[1], change[2] = -1, -blocks
end
count(KEYS[3], ARGV[3], rank, unpack(change))
return 1
