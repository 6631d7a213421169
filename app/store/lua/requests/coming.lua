-- How much of some prompts caches of a pool will have, since requests that begin alike wait there. Reads only.
--
-- KEYS     1 starting:<pool>
-- ARGV     1 points from one to the next of those that a prompt leaves for others, 0: it leaves the one at its end
--          2… prompts as packed hashes of the points where they may resume: of their blocks, for most models
-- returns  for each prompt a list: place, blocks, …: leading blocks that a request that waits for its prefill there will
--          leave in its cache; of some of those that share the most, as far as powers of four tell; of long ones as far as
--          their outlines tell (app/dispatch/placing/placement_commands.py)
local call, sub, byte, floor = redis.call, string.sub, string.byte, math.floor
local every = tonumber(ARGV[1])
local AT_ONCE = 4000 -- beginnings (`unpack`)
local WHOLE = 1024 -- first blocks that an outline has all of, and about as many of the others

-- A waiting prompt: its place, its hashes behind the first `skip` bytes (a copy of them would take longer than all
-- comparisons), how many these are, of how many blocks, and from one to the next of those behind the first.
local function parsed(value)
  local skip = string.find(value, '\n', 1, true)
  local bytes = #value - skip
  local hashes = floor(bytes / 8)
  local waiting = {place = sub(value, 1, skip - 1), value = value, skip = skip, hashes = hashes, blocks = hashes, step = 1}
  if bytes % 8 == 4 then
    waiting.blocks = struct.unpack('<I4', sub(value, -4))
    waiting.step = math.ceil((waiting.blocks - WHOLE) / WHOLE)
  end
  return waiting
end

-- Which block the hash `index` of a waiting prompt is of.
local function block_of(waiting, index)
  if index <= WHOLE then return index end
  return math.min(WHOLE + (index - WHOLE) * waiting.step, waiting.blocks)
end

-- The last block that a prompt is known to share with one that waits; they share `low`.
local function shared(prompt, waiting, low)
  local value, skip, high = waiting.value, waiting.skip, math.min(waiting.hashes, #prompt / 8)
  while low < high do
    local middle = floor((low + high + 1) / 2)
    local last, behind = block_of(waiting, middle) * 8, skip + middle * 8
    local same = last <= #prompt and byte(prompt, last) == byte(value, behind) -- most differ in one byte
    if same and sub(prompt, last - 7, last) == sub(value, behind - 7, behind) then
      low = middle
    else
      high = middle - 1
    end
  end
  return block_of(waiting, low)
end

local known = {} -- the waiting prompts that were read, or false: those of a round meet the same ones

-- The prompts of the `runs`, against one that shares `low` blocks with them.
local function compare(prompt, runs, low, out)
  local names, new = {}, {}
  for run in string.gmatch(runs, '[^\n]+') do
    names[#names + 1] = run
    if known[run] == nil then new[#new + 1] = run end
  end
  for i, value in ipairs(#new > 0 and call('HMGET', KEYS[1], unpack(new)) or {}) do
    known[new[i]] = value and parsed(value)
  end
  for _, run in ipairs(names) do
    local waiting = known[run]
    if waiting then
      local blocks = shared(prompt, waiting, low)
      if blocks < waiting.blocks then blocks = every > 0 and blocks - blocks % every or 0 end
      if blocks > 0 then out[#out + 1], out[#out + 2] = waiting.place, blocks end
    end
  end
end

local asked, last, replies = {}, {}, {} -- last: the index of each prompt's last beginning
for p = 1, #ARGV - 1 do
  replies[p] = {}
  for _, hash in ipairs(beginnings(ARGV[p + 1])) do asked[#asked + 1] = hash end
  last[p] = #asked
end
if #asked == 0 then return replies end
local found = {} -- of all prompts at once: one call instead of one for each
for from = 1, #asked, AT_ONCE do
  local values = call('HMGET', KEYS[1], unpack(asked, from, math.min(#asked, from + AT_ONCE - 1)))
  for i = 1, #values do found[from + i - 1] = values[i] end
end
for p = 1, #ARGV - 1 do
  local before, at = last[p - 1] or 0, last[p]
  while at > before and #replies[p] == 0 do
    if found[at] then compare(ARGV[p + 1], found[at], 4 ^ (at - before - 1), replies[p]) end
    at = at - 1
  end
end
return replies
