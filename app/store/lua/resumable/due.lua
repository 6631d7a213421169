-- Claims the responses that a webhook is to be told of by now. Those that are not told meanwhile are due again.
--
-- KEYS  1 untold     ARGV  1 now, ms  2 when they are due again, ms  3 at most so many
-- returns  their members
local due = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[3])
for _, member in ipairs(due) do
  redis.call('ZADD', KEYS[1], ARGV[2], member)
end
return due
