-- Counts the bytes that kept answers take in Redis, about. Prepended to the scripts that change them; uses their last
-- two keys: kept-bytes  kept-expiring
local function member(id, key) return id .. '|' .. key end

local function count(id, key, bytes)
  for _, field in ipairs({'all', 'key:' .. key, 'id:' .. id}) do
    if redis.call('HINCRBY', KEYS[#KEYS - 1], field, bytes) <= 0 then redis.call('HDEL', KEYS[#KEYS - 1], field) end
  end
end

local function now()
  local clock = redis.call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function expires_in(id, key, ms) redis.call('ZADD', KEYS[#KEYS], now() + ms, member(id, key)) end

local function release(id, key)
  count(id, key, 0 - (redis.call('HGET', KEYS[#KEYS - 1], 'id:' .. id) or 0))
  redis.call('ZREM', KEYS[#KEYS], member(id, key))
end

local function no_room(key, bytes, most_of_key, most_in_all)
  -- The limit that so many more bytes exceed, 'key' or 'all', and ms until something expires; nothing if none.
  for _, expired in ipairs(redis.call('ZRANGE', KEYS[#KEYS], '-inf', now(), 'BYSCORE', 'LIMIT', 0, 1000)) do
    local id, owner = string.match(expired, '^([^|]*)|(.*)$')
    if id then release(id, owner) else redis.call('ZREM', KEYS[#KEYS], expired) end -- of another version
  end
  for i, field in ipairs({'key:' .. key, 'all'}) do
    local most = tonumber(i == 1 and most_of_key or most_in_all)
    if most and (redis.call('HGET', KEYS[#KEYS - 1], field) or 0) + bytes > most then
      local next_at = redis.call('ZRANGE', KEYS[#KEYS], 0, 0, 'WITHSCORES')[2]
      return i == 1 and 'key' or 'all', next_at and next_at - now() or 0
    end
  end
end
