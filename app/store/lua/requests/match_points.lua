-- The last point of some prompts at which each of a pool's caches can resume them. Reads only.
--
-- KEYS     1 cached:<pool>, and predicted:<pool>:<place> of places whose engines report no KV events
-- ARGV     1 now, ms since the epoch  2 0: the first list isn't wanted
--          3 numbers of the prompts, from 1, so that those that begin alike are neighbours; may be empty without guesses
--          4… prompts as packed hashes of their points
-- returns  as match.lua, in points instead of blocks
--
-- For engines that keep what all layers of a model need at some points only: a cache that has a later one need not have
-- an earlier one, so all are looked at, from the last one on.
local call, sub = redis.call, string.sub
local now = tonumber(ARGV[1])
local AT_ONCE = 1000 -- points (`unpack`)

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

-- The order of ARGV 3, and how many leading points each prompt shares with the one before it. So each point of the tree
-- that they are is one prompt's: the first one's that has it. (Lua would sort by the locale of the server, which can part
-- what begins alike.)
local function tree()
  local order, shared = {}, {}
  for number in string.gmatch(ARGV[3], '%d+') do order[#order + 1] = number + 3 end
  local before = ''
  for _, p in ipairs(order) do
    local h = ARGV[p]
    local low, high = 0, math.min(#h, #before) / 8
    while low < high do
      local middle = math.floor((low + high + 1) / 2)
      if sub(h, middle * 8 - 7, middle * 8) == sub(before, middle * 8 - 7, middle * 8) then low = middle else high = middle - 1 end
    end
    shared[p], before = low, h
  end
  return order, shared
end

local look_ups = 0

-- Both return the points of each prompt, behind those that it shares, that a place is expected to have; in order. The first
-- reads what the place has, the second asks for the points.
local function by_place(key, owner, index)
  local there, several = {}, {}
  local hashes = call('ZRANGE', key, '(' .. ARGV[1], '+inf', 'BYSCORE')
  look_ups = look_ups + #hashes
  for _, hash in ipairs(hashes) do
    local p = owner[hash]
    if p then
      if there[p] then several[p] = true else there[p] = {} end
      table.insert(there[p], index[hash])
    end
  end
  for p in pairs(several) do table.sort(there[p]) end
  return there
end

local function by_point(key, shared)
  local there = {}
  for p = 4, #ARGV do
    local behind, found = {}, {}
    each(ARGV[p], shared[p], #ARGV[p] / 8, 'ZMSCORE', key, function(i, expires)
      if tonumber(expires) > now then behind[#behind + 1] = i end
    end)
    for n = #behind, 1, -1 do found[#found + 1] = behind[n] end
    there[p] = found
  end
  return there
end

local function guess(replies)
  local order, shared = tree()
  local points, owner, index = 0, nil, nil
  for p = 4, #ARGV do points = points + #ARGV[p] / 8 - shared[p] end
  for k = 2, #KEYS do
    if look_ups >= LOOK_UPS then return end
    local there
    if 2 * call('ZCARD', KEYS[k]) < points then
      if not owner then
        owner, index = {}, {}
        for p = 4, #ARGV do
          for i = shared[p] + 1, #ARGV[p] / 8 do
            local hash = sub(ARGV[p], i * 8 - 7, i * 8)
            owner[hash], index[hash] = p, i
          end
        end
      end
      there = by_place(KEYS[k], owner, index)
    else
      there = by_point(KEYS[k], shared)
      look_ups = look_ups + points
    end
    look_ups = look_ups + #ARGV
    local path, length = {}, 0 -- the points of one prompt after the other that the place has
    for _, p in ipairs(order) do
      while length > 0 and path[length] > shared[p] do length = length - 1 end
      for _, i in ipairs(there[p] or {}) do
        length = length + 1
        path[length] = i
      end
      replies[p - 3][2][k - 1] = path[length] or 0
    end
  end
end

local replies = {}
for p = 4, #ARGV do replies[p - 3] = {ARGV[2] ~= '0' and caches_of(ARGV[p]) or {}, {}} end
if #KEYS > 1 then guess(replies) end
return replies
