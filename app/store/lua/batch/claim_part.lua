-- A batch worker claims a part that was sent to it, and renews its claim.
--
-- KEYS  1 batch:<id>  2 taken:<batch>     ARGV  1 part  2 ticket  3 worker
-- returns 1; 0 when the batch has stopped, the part was sent anew, or another worker has it
local status, paused = unpack(redis.call('HMGET', KEYS[1], 'status', 'paused'))
if status ~= 'in_progress' or paused == '1' then return 0 end
local ticket, worker = string.match(redis.call('HGET', KEYS[2], ARGV[1]) or '', '^(%d+)|(.*)|')
if ticket ~= ARGV[2] or (worker ~= '' and worker ~= ARGV[3]) then return 0 end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. '|' .. ARGV[3] .. '|' .. now)
return 1
