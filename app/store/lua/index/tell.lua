-- Tells API replicas that a worker's lease is another one now, or gone.
--
-- KEYS  1 changed:<pool>
-- ARGV  1 worker
-- A later change has a greater score, also when two come in one microsecond or the clock goes back. Workers that changed
-- more than an hour ago are forgotten: who has not looked since then reads all leases.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local newest = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 3600000000)
return redis.call('ZADD', KEYS[1], string.format('%.0f', math.max(now, (tonumber(newest[2]) or 0) + 1)), ARGV[1])
