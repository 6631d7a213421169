-- Gives a batch worker the hand over a batch, which one at a time has: to validate it, or to finish it. Who has it asks
-- again and again, and so says that it is at it: a Redis that came back without its last second may say so of one that
-- has long let go.
--
-- KEYS  1 batch:<id>
-- ARGV  1 the status it has to have  2 worker  3 the prefix of workers' leases  4 ms after which who is silent has let go
-- returns 1; 0 when it has another status, or a living worker has the hand
local status, hand, at = unpack(redis.call('HMGET', KEYS[1], 'status', 'hand', 'hand_at'))
if status ~= ARGV[1] then return 0 end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if hand and hand ~= ARGV[2] and now - (at or 0) <= tonumber(ARGV[4]) and redis.call('EXISTS', ARGV[3] .. hand) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'hand', ARGV[2], 'hand_at', now)
return 1
