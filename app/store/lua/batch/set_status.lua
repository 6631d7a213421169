-- Moves a batch from one status to another, if it has one of those expected and the hand that moves it.
--
-- KEYS  1 batch:<id>     ARGV  1 statuses it may have, each between commas  2 the hand, or '' for any
--       3 life in ms once it has ended, or '' when it goes on  4… fields and values to set, `status` first if it changes:
--       what comes next is for another hand
-- returns 1; 0 and nothing done otherwise. Sent twice, the second finds the new status.
local status, hand = unpack(redis.call('HMGET', KEYS[1], 'status', 'hand'))
if not status or not string.find(ARGV[1], ',' .. status .. ',', 1, true) then return 0 end
if ARGV[2] ~= '' and hand ~= ARGV[2] then return 0 end
if ARGV[4] == 'status' then redis.call('HDEL', KEYS[1], 'hand', 'hand_at') end
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
if ARGV[3] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return 1
