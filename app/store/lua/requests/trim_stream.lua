-- Trims an API replica's stream: by the bytes that all workers have written to it, and by age.
--
-- KEYS  1 out:<api>  2 out:<api>:marks
-- ARGV  1 bytes that this worker has written since its last call  2 bytes to keep  3 life, ms
-- A mark is an entry's id, and the bytes written by then. Sent twice, the bytes count twice.
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if not newest then return end
local written = tonumber(redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2] or 0) + ARGV[1]

local function ms(id) return tonumber(string.match(id, '^%d+')) end
local oldest
for _ = 1, redis.call('ZCARD', KEYS[2]) do
  local id, at = unpack(redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES'))
  if written - at <= tonumber(ARGV[2]) and ms(newest[1]) - ms(id) <= tonumber(ARGV[3]) then break end
  redis.call('ZREM', KEYS[2], id)
  oldest = id
end
if oldest then redis.call('XTRIM', KEYS[1], 'MINID', oldest) end
redis.call('ZADD', KEYS[2], written, newest[1])
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[3]) end
