-- How much of some prompts a pool's caches have. Reads only.
--
-- KEYS     1 cached:<pool>, and predicted:<pool>:<place> of places whose engines report no KV events
-- ARGV     1 now, ms since the epoch  2 0: the first list isn't wanted  3… prompts as packed block hashes
-- returns  for each prompt a list of two:
--          1 depth, caches, depth, caches, …: these caches (packed numbers, see app/keys/keys.toml) hold so many leading blocks,
--            unless a greater depth names them again
--          2 leading blocks that each of the places above is expected to hold: of the first places only, where one call
--            would take long for all
--
-- What a cache holds is prefix-closed (children are evicted before their parents), so the caches of a prompt's later
-- blocks are among those of its earlier ones: a binary search for each change, O(changes × log blocks), whatever the
-- number of places is. Places without KV events cost that much each, but for what prompts share.
local call, sub, floor = redis.call, string.sub, math.floor
local now = tonumber(ARGV[1])
local MOST_CHANGES = 32 -- of one prompt; beyond it some places seem to hold less than they do

-- How many caches hold a block, in bytes: reading them all costs more where they are many. While a cache that is gone is
-- being swept, a place may seem to hold less than it does.
local function size_of(h, index)
  return call('HSTRLEN', KEYS[1], sub(h, index * 8 - 7, index * 8))
end

local function changes(h, out, low, at_low, high, at_high)
  if at_low == at_high or #out >= 2 * MOST_CHANGES then return end
  if high - low == 1 then
    out[#out + 1] = low
    out[#out + 1] = call('HGET', KEYS[1], sub(h, low * 8 - 7, low * 8)) or ''
    return
  end
  local middle = floor((low + high) / 2)
  local at_middle = size_of(h, middle)
  changes(h, out, middle, at_middle, high, at_high) -- the deepest first
  changes(h, out, low, at_low, middle, at_middle)
end

-- Of the prompts: the first of those that begin alike; the others; and of each of these the first
-- one, and how many leading blocks it shares with that one.
local function kinship()
  local found, first, others, kin, shared = {}, {}, {}, {}, {}
  for p = 3, #ARGV do
    local h = ARGV[p]
    local one = found[sub(h, 1, 8)]
    if one then
      local low, high = 1, math.min(#h, #ARGV[one]) / 8
      while low < high do
        local middle = floor((low + high + 1) / 2)
        local hash = sub(h, middle * 8 - 7, middle * 8)
        if hash == sub(ARGV[one], middle * 8 - 7, middle * 8) then low = middle else high = middle - 1 end
      end
      others[#others + 1], kin[p], shared[p] = p, one, low
    elseif h ~= '' then
      found[sub(h, 1, 8)], first[#first + 1] = p, p
    end
  end
  return first, others, kin, shared
end

local look_ups = 0

local function holds(expires)
  return expires and tonumber(expires) > now
end

-- How many leading blocks of the `open` prompts a place is expected to hold: `low` of each for certain, `high` at most.
-- The first step is by one block, since most prompts part there from what is known. The steps of all are one command;
-- of one prompt they need no tables.
local function search(key, open, low, high)
  local near = true
  while #open > 1 do
    local tried, hashes, still = {}, {}, {}
    for i, p in ipairs(open) do
      local block = near and low[p] + 1 or floor((low[p] + high[p] + 1) / 2)
      tried[i], hashes[i] = block, sub(ARGV[p], block * 8 - 7, block * 8)
    end
    look_ups = look_ups + #open
    for i, expires in ipairs(call('ZMSCORE', key, unpack(hashes))) do
      local p = open[i]
      if holds(expires) then low[p] = tried[i] else high[p] = tried[i] - 1 end
      if low[p] < high[p] then still[#still + 1] = p end
    end
    open, near = still, false
  end
  local p = open[1]
  while p and low[p] < high[p] do
    local block = near and low[p] + 1 or floor((low[p] + high[p] + 1) / 2)
    look_ups, near = look_ups + 1, false
    if holds(call('ZSCORE', key, sub(ARGV[p], block * 8 - 7, block * 8))) then low[p] = block else high[p] = block - 1 end
  end
end

local function guess(replies)
  local first, others, kin, shared = kinship()
  for k = 2, #KEYS do
    if look_ups >= LOOK_UPS then return end
    local held, most, open = {}, {}, {}
    for _, p in ipairs(first) do held[p], most[p] = 0, #ARGV[p] / 8 end
    search(KEYS[k], first, held, most)
    for _, p in ipairs(others) do
      held[p], most[p] = math.min(held[kin[p]], shared[p]), #ARGV[p] / 8
      if held[p] == shared[p] and held[p] < most[p] then open[#open + 1] = p end
    end
    search(KEYS[k], open, held, most)
    for p = 3, #ARGV do replies[p - 2][2][k - 1] = held[p] or 0 end
  end
end

local replies = {}
for p = 3, #ARGV do
  local h, reply = ARGV[p], {{}, {}}
  local n = #h / 8
  if n > 0 and ARGV[2] ~= '0' then changes(h, reply[1], 1, size_of(h, 1), n + 1, 0) end
  replies[p - 2] = reply
end
guess(replies)
return replies
