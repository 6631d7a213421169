-- How much of some prompts a pool's caches have. Reads only.
--
-- KEYS     1 cached:<pool>, and predicted:<pool>:<place> of places whose engines report no KV events
-- ARGV     1 now, ms since the epoch  2… prompts as packed block hashes
-- returns  for each prompt a list of two:
--          1 depth, caches, depth, caches, …: these caches (packed numbers, see app/keys.py) hold so many leading blocks,
--            unless a greater depth names them again
--          2 leading blocks that each of the places above is expected to hold
--
-- What a cache holds is prefix-closed (children are evicted before their parents), so the caches of a prompt's later
-- blocks are among those of its earlier ones: a binary search for each change, O(changes × log blocks), whatever the
-- number of places is.
local call, sub, floor = redis.call, string.sub, math.floor
local now = tonumber(ARGV[1])
local MOST_CHANGES = 32 -- of one prompt; beyond it some places seem to hold less than they do

-- The last block of prompt `h` from `low` on, of `n`, for which `has(hash, index)` is true.
local function last(h, low, n, has)
  while low < n do
    local middle = floor((low + n + 1) / 2)
    if has(sub(h, middle * 8 - 7, middle * 8), middle) then low = middle else n = middle - 1 end
  end
  return low
end

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

local function guessed(h, n, out)
  for i = 2, #KEYS do
    local function has(hash)
      local expires = call('ZSCORE', KEYS[i], hash)
      return expires and tonumber(expires) > now
    end
    out[#out + 1] = n > 0 and has(sub(h, 1, 8)) and last(h, 1, n, has) or 0
  end
end

local replies = {}
for p = 2, #ARGV do
  local h = ARGV[p]
  local n, reply = #h / 8, {{}, {}}
  if n > 0 then changes(h, reply[1], 1, size_of(h, 1), n + 1, 0) end
  guessed(h, n, reply[2])
  replies[#replies + 1] = reply
end
return replies
