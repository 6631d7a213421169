-- The last point of some prompts at which each of a pool's caches can resume them. Reads only.
--
-- KEYS     1 cached:<pool>, and predicted:<pool>:<place> of places whose engines report no KV events
-- ARGV     1 now, ms since the epoch  2 0: the first list isn't wanted  3… prompts as packed hashes of their points
-- returns  as match.lua, in points instead of blocks
--
-- For engines that keep what all layers of a model need at some points only: a cache that has a later one need not have
-- an earlier one, so all are looked at, from the last one on.
local call, sub = redis.call, string.sub
local now = tonumber(ARGV[1])
local AT_ONCE = 1000 -- points (`unpack`)
local IN_LUA = 20 -- points that are found here in the time of a look-up

-- Calls `see(index, value)` for each point of the prompt `h` behind `from`, up to `to`, the last one first, until it
-- returns true.
local function each(h, from, to, command, key, see)
  for last = to, from + 1, -AT_ONCE do
    local hashes, first = {}, math.max(from + 1, last - AT_ONCE + 1)
    for i = first, last do hashes[i - first + 1] = sub(h, i * 8 - 7, i * 8) end
    local values = call(command, key, unpack(hashes))
    for i = last, first, -1 do
      local value = values[i - first + 1]
      if value and see(i, value) then return end
    end
  end
end

local function caches_of(h)
  local out, before, seen = {}, nil, {}
  each(h, 0, #h / 8, 'HMGET', KEYS[1], function(index, caches)
    if caches == before then return end
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

local split = {} -- the hashes of prompts: many places are asked about them

local function hashes_of(p)
  if not split[p] then
    split[p] = {}
    for i = 1, #ARGV[p] / 8 do split[p][i] = sub(ARGV[p], i * 8 - 7, i * 8) end
  end
  return split[p]
end

-- Both return a function of a prompt, `from` and `to`: the last of its points behind `from`, up to `to`, that a place is
-- expected to have. The first reads what the place has, the second asks for the points.
local function by_place(key)
  local held = {}
  for _, hash in ipairs(call('ZRANGE', key, '(' .. ARGV[1], '+inf', 'BYSCORE')) do held[hash] = true end
  return function(p, from, to)
    local hashes = hashes_of(p)
    for i = to, from + 1, -1 do
      if held[hashes[i]] then return i end
    end
    return 0
  end
end

local function by_point(key)
  return function(p, from, to)
    local found = 0
    each(ARGV[p], from, to, 'ZMSCORE', key, function(i, expires)
      if tonumber(expires) > now then found = i end
      return found > 0
    end)
    return found
  end
end

local function guess(replies)
  local _, _, kin, shared = kinship(3)
  local points, look_ups = 0, 0
  for p = 3, #ARGV do points = points + #ARGV[p] / 8 - (shared[p] or 0) end
  for k = 2, #KEYS do
    if look_ups >= LOOK_UPS then return end
    local size = call('ZCARD', KEYS[k])
    local reads = 2 * size < points
    look_ups = look_ups + (reads and 2 * size + points / IN_LUA or points)
    local last = reads and by_place(KEYS[k]) or by_point(KEYS[k])
    local known = {} -- of the points that prompts share: by the first of these prompts and how many there are
    for p = 3, #ARGV do
      local both = shared[p] or 0
      local found = last(p, both, #ARGV[p] / 8)
      if found == 0 and both > 0 then
        local name = kin[p] .. ' ' .. both
        known[name] = known[name] or last(kin[p], 0, both)
        found = known[name]
      end
      replies[p - 2][2][k - 1] = found
    end
  end
end

local replies = {}
for p = 3, #ARGV do replies[p - 2] = {ARGV[2] ~= '0' and caches_of(ARGV[p]) or {}, {}} end
guess(replies)
return replies
