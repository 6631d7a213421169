-- Changes tenants, API keys and prices together, unless somebody has changed some since they were read.
--
-- KEYS     1 tenants-version  2 tenants  3 keys:api  4 prices  5 key-owners
-- ARGV     1 the version that was read, or ''  2 the new version; then for each change:
--          2 tenants, 3 keys:api or 4 prices; the field; its value, or '' to delete it
-- returns  1 when they are changed, 0 when they are not. Sent twice, the second changes nothing.
local version = redis.call('GET', KEYS[1]) or ''
if version == ARGV[2] then return 1 end
if version ~= ARGV[1] then return 0 end
for i = 3, #ARGV, 3 do
  local hash = tonumber(ARGV[i])
  if ARGV[i + 2] == '' then
    local old = hash == 3 and redis.call('HGET', KEYS[3], ARGV[i + 1])
    if old then -- an ApiKey: what was made with it can still be erased
      local key = cmsgpack.unpack(old)
      local id = key[6] or ''
      redis.call('HSET', KEYS[5], id == '' and key[1] or id, key[11] or 'default')
    end
    redis.call('HDEL', KEYS[hash], ARGV[i + 1])
  else
    redis.call('HSET', KEYS[hash], ARGV[i + 1], ARGV[i + 2])
  end
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
