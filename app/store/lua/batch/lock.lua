-- Gives a batch worker the lock of a batch, to validate or finish it: one worker at a time has it. The holder renews it:
-- a Redis that came back without its last second may name a holder that has unlocked already.
--
-- KEYS  1 batch:<id>
-- ARGV  1 the status it has to have  2 worker  3 the prefix of workers' leases  4 ms without renewal after which the lock is lost
-- returns 1; 0 when it has another status, or a living worker has the lock
local status, holder, at = unpack(redis.call('HMGET', KEYS[1], 'status', 'holder', 'holder_at'))
if status ~= ARGV[1] then return 0 end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if holder and holder ~= ARGV[2] and now - (at or 0) <= tonumber(ARGV[4]) and redis.call('EXISTS', ARGV[3] .. holder) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'holder', ARGV[2], 'holder_at', now)
return 1
