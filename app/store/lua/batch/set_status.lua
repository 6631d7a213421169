-- Sets fields of a batch, its status among them, if its status is an expected one and the caller has the lock.
--
-- KEYS  1 batch:<id>     ARGV  1 statuses it may have, each between commas  2 the holder, or '' for any
--       3 life in ms if it ends now, else ''  4… fields and values to set, `status` first if it changes: that unlocks it
-- returns 1; 0 and nothing done otherwise. Sent twice, the second finds the new status.
local status, holder = unpack(redis.call('HMGET', KEYS[1], 'status', 'holder'))
if not status or not string.find(ARGV[1], ',' .. status .. ',', 1, true) then return 0 end
if ARGV[2] ~= '' and holder ~= ARGV[2] then return 0 end
if ARGV[4] == 'status' then redis.call('HDEL', KEYS[1], 'holder', 'holder_at') end
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
if ARGV[3] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return 1
