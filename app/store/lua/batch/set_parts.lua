-- Sets the parts of a batch, for the batch worker that validates it. None is taken before the status changes.
--
-- KEYS  1 batch:<id>  2 todo:<batch>     ARGV  1 the holder, or '' for any  2 how many parts
-- returns 1; 0 and nothing done when another worker has the lock, or it is validated already
local status, holder = unpack(redis.call('HMGET', KEYS[1], 'status', 'holder'))
if status ~= 'validating' or (ARGV[1] ~= '' and holder ~= ARGV[1]) then return 0 end
redis.call('UNLINK', KEYS[2])
for part = 0, ARGV[2] - 1 do redis.call('ZADD', KEYS[2], part, part) end
return 1
