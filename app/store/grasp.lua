-- Gives a batch worker the hand over a batch, which one at a time has: to validate it, or to finish it.
--
-- KEYS  1 batch:<id>     ARGV  1 the status it has to have  2 worker  3 the prefix of workers' leases
-- returns 1; 0 when it has another status, or a living worker has the hand
local status, hand = unpack(redis.call('HMGET', KEYS[1], 'status', 'hand'))
if status ~= ARGV[1] then return 0 end
if hand and hand ~= ARGV[2] and redis.call('EXISTS', ARGV[3] .. hand) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'hand', ARGV[2])
return 1
