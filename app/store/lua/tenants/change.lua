-- Changes tenants, API keys and prices together, unless somebody has changed some since they were read.
--
-- KEYS     1 tenants-version  2 tenants  3 keys:api  4 prices  5 key-owners
-- ARGV     1 the version that was read, or ''  2 the new version; then for each change:
--          2 tenants, 3 keys:api, 4 prices or 5 key-owners; the field; its value, or '' to delete it
-- returns  1 when they are changed, 0 when they are not. Sent twice, the second changes nothing.
local version = redis.call('GET', KEYS[1]) or ''
if version == ARGV[2] then return 1 end
if version ~= ARGV[1] then return 0 end
for i = 3, #ARGV, 3 do
  local hash = tonumber(ARGV[i])
  if ARGV[i + 2] == '' then
    redis.call('HDEL', KEYS[hash], ARGV[i + 1])
  else
    redis.call('HSET', KEYS[hash], ARGV[i + 1], ARGV[i + 2])
  end
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
