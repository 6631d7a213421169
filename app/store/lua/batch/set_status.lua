-- Moves a batch from one status to another, if it has one of those expected and the holder that moves it.
--
-- KEYS  1 batch:<id>     ARGV  1 statuses it may have, each between commas  2 the holder, or '' for any
--       3 life in ms once it has ended, or '' when it goes on  4… fields and values to set, `status` first if it changes:
--       what comes next is for another holder
-- returns 1; 0 and nothing done otherwise. Sent twice, the second finds the new status.
local status, holder = unpack(redis.call('HMGET', KEYS[1], 'status', 'holder'))
if not status or not string.find(ARGV[1], ',' .. status .. ',', 1, true) then return 0 end
if ARGV[2] ~= '' and holder ~= ARGV[2] then return 0 end
if ARGV[4] == 'status' then redis.call('HDEL', KEYS[1], 'holder', 'holder_at') end
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
if ARGV[3] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return 1
