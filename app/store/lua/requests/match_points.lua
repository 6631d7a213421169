-- The last point of some prompts at which each of a pool's caches can resume them. Reads only.
--
-- KEYS     1 cached:<pool>, and predicted:<pool>:<place> of places whose engines report no KV events
-- ARGV     1 now, ms since the epoch  2… prompts as packed hashes of their points
-- returns  as match.lua, in points instead of blocks
--
-- For engines that keep what all layers of a model need at some points only: a cache that has a later one need not have
-- an earlier one, so all are looked at, from the last one on.
local call, sub = redis.call, string.sub
local now = tonumber(ARGV[1])
local AT_ONCE = 1000 -- points (`unpack`)

-- Calls `see(index, value)` for each point of the prompt `h`, the last one first, until it returns true.
local function each(h, command, key, see)
  for last = #h / 8, 1, -AT_ONCE do
    local hashes, first = {}, math.max(1, last - AT_ONCE + 1)
    for i = first, last do hashes[#hashes + 1] = sub(h, i * 8 - 7, i * 8) end
    local values = call(command, key, unpack(hashes))
    for i = last, first, -1 do
      if see(i, values[i - first + 1]) then return end
    end
  end
end

local function caches_of(h)
  local out, before, seen = {}, nil, {}
  each(h, 'HMGET', KEYS[1], function(index, caches)
    if not caches or caches == before then return end
    before = caches
    local new = false
    for at = 1, #caches, 4 do
      local number = sub(caches, at, at + 3)
      if not seen[number] then seen[number], new = true, true end
    end
    if new then out[#out + 1], out[#out + 2] = index, caches end
  end)
  return out
end

local function guessed(h, key)
  local found = 0
  each(h, 'ZMSCORE', key, function(index, expires)
    if expires and tonumber(expires) > now then found = index end
    return found > 0
  end)
  return found
end

local replies = {}
for p = 2, #ARGV do
  local guesses = {}
  for i = 2, #KEYS do guesses[#guesses + 1] = guessed(ARGV[p], KEYS[i]) end
  replies[#replies + 1] = {caches_of(ARGV[p]), guesses}
end
return replies
