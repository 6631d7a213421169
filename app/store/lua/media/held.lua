-- Prepended to the scripts that count the samples of requests in progress. How often a sample is held is counted for all
-- clients, for a tenant and for a key: its bytes count once for each of them. It is removed with its last holder.
--
-- KEYS     1 media:held  2 media:ends  3 media:, for a sample's own key
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function had(field) return tonumber(redis.call('HGET', KEYS[1], field) or 0) end

local function add(field, number)
  local left = redis.call('HINCRBY', KEYS[1], field, number)
  if left <= 0 then redis.call('HDEL', KEYS[1], field) end
  return left
end

-- Whose a request's samples are: the owners that are counted, and the samples' hashes.
local function parts(record)
  local owners, hashes, key, tenant, rest = {'all'}, {}, string.match(record, '^([^|]*)|([^|]*)|(.*)$')
  if tenant ~= '' then owners[#owners + 1] = 'tenant:' .. tenant end
  if key ~= '' then owners[#owners + 1] = 'key:' .. key end
  for hash in string.gmatch(rest, '%S+') do hashes[#hashes + 1] = hash end
  return owners, hashes
end

-- A process of an older version holds samples without saying so, and lets them live for longer than `ms`.
local function release(request, ms)
  local record = redis.call('HGET', KEYS[1], 'of:' .. request)
  redis.call('ZREM', KEYS[2], request)
  if not record then return end
  redis.call('HDEL', KEYS[1], 'of:' .. request)
  local owners, hashes = parts(record)
  for _, hash in ipairs(hashes) do
    local size = had('size:' .. hash)
    for _, owner in ipairs(owners) do
      if add('n:' .. hash .. '|' .. owner, -1) <= 0 then add(owner, -size) end
    end
    if had('n:' .. hash .. '|all') == 0 then
      redis.call('HDEL', KEYS[1], 'size:' .. hash)
      if redis.call('PTTL', KEYS[3] .. hash) <= ms then redis.call('UNLINK', KEYS[3] .. hash) end
    end
  end
end
