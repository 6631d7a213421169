-- Moves a batch from one status to another, if it has one of those expected and the hand that moves it.
--
-- KEYS  1 batch:<id>  2 batches     ARGV  1 id  2 statuses it may have, each between commas  3 the hand, or '' for any
--       4 life in ms once it has ended, or '' when it goes on  5… fields and values to set, `status` first if it changes:
--       what comes next is for another hand
-- returns 1; 0 and nothing done otherwise. Sent twice, the second finds the new status.
local status, hand = unpack(redis.call('HMGET', KEYS[1], 'status', 'hand'))
if not status or not string.find(ARGV[2], ',' .. status .. ',', 1, true) then return 0 end
if ARGV[3] ~= '' and hand ~= ARGV[3] then return 0 end
if ARGV[5] == 'status' then redis.call('HDEL', KEYS[1], 'hand') end
redis.call('HSET', KEYS[1], unpack(ARGV, 5))
if ARGV[4] ~= '' then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return 1
