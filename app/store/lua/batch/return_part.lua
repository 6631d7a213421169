-- A batch worker returns a part: done and in the storage, or to be tried by another one. A part that broke too often
-- isn't tried again; its results so far stay.
--
-- KEYS  1 taken:<batch>  2 todo:<batch>  3 done:<batch>:<part>  4 batch:<id>
-- ARGV  1 part  2 ticket  3 worker  4 'done', 'back' or 'broke'  5 how often it may break
-- returns 1; 0 when another worker has the part by now
local ticket, worker = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^(%d+)|(.*)|')
if ticket ~= ARGV[2] or worker ~= ARGV[3] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
if ARGV[4] == 'done' then
  redis.call('UNLINK', KEYS[3])
elseif ARGV[4] == 'back' or redis.call('HINCRBY', KEYS[4], 'broke:' .. ARGV[1], 1) < tonumber(ARGV[5]) then
  redis.call('ZADD', KEYS[2], ARGV[1], ARGV[1])
end
return 1
