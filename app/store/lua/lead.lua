-- Makes a process the leader of its kind, or renews that: one at a time decides.
--
-- KEYS  1 batch-leader, planner-leader or erasing     ARGV  1 process  2 ms
-- returns 1 when this process leads, for so many ms; else 0
local leader = redis.call('GET', KEYS[1])
if leader and leader ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
