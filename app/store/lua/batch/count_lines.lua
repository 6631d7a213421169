-- Counts the lines of a batch among those of unfinished ones, if no other batch was counted since `batch-counts` was read.
--
-- KEYS  1 batch:<id>  2 batch-counts     ARGV  1 the holder  2 lines  3 batch-counts, as read before the limits were checked
-- returns 0 and nothing done when another was counted meanwhile: the limits have to be checked again. Else 1; with nothing
-- done when another worker has the lock, or it is validated already: then `set_parts.lua` does nothing either.
-- Sent twice, the second says 0: this batch is none of those that it is checked against.
local status, holder = unpack(redis.call('HMGET', KEYS[1], 'status', 'holder'))
if status ~= 'validating' or holder ~= ARGV[1] then return 1 end
local counts = redis.call('GET', KEYS[2]) or '0'
if counts ~= ARGV[3] then return 0 end
redis.call('SET', KEYS[2], string.format('%d', (tonumber(counts) or 0) + 1)) -- what is no number, a hand's, begins anew
redis.call('HSET', KEYS[1], 'total', ARGV[2])
return 1
