-- How much of some prompts caches of a pool will have, since requests that begin alike wait there. Reads only.
--
-- KEYS     1 starting:<pool>     ARGV  prompts as packed block hashes
-- returns  for each prompt a list: place, blocks, …: leading blocks that a request that waits for its prefill there will
--          leave in its cache; of some of those that share the most, as far as powers of four tell
local call, sub, byte, floor = redis.call, string.sub, string.byte, math.floor

-- The last block that two prompts of `n` blocks or more share; they share `low`. The other one is what is behind its
-- first `skip` bytes: a copy of it would take longer than all comparisons.
local function shared(one, other, skip, low, n)
  while low < n do
    local middle = floor((low + n + 1) / 2)
    local last = middle * 8
    local same = byte(one, last) == byte(other, skip + last) -- most differ in one byte
    if same and sub(one, last - 7, last) == sub(other, skip + last - 7, skip + last) then
      low = middle
    else
      n = middle - 1
    end
  end
  return low
end

-- The prompts of the `runs`, against one that shares `low` blocks with them.
local function compare(prompt, runs, low, out)
  local names = {}
  for run in string.gmatch(runs, '[^\n]+') do names[#names + 1] = run end
  for _, waiting in ipairs(call('HMGET', KEYS[1], unpack(names))) do
    if waiting then
      local at = string.find(waiting, '\n', 1, true)
      out[#out + 1] = sub(waiting, 1, at - 1)
      out[#out + 1] = shared(prompt, waiting, at, low, math.min(#prompt, #waiting - at) / 8)
    end
  end
end

local asked, last, replies = {}, {}, {} -- last: the index of each prompt's last beginning
for p = 1, #ARGV do
  replies[p] = {}
  for _, hash in ipairs(beginnings(ARGV[p])) do asked[#asked + 1] = hash end
  last[p] = #asked
end
if #asked == 0 then return replies end
local found = call('HMGET', KEYS[1], unpack(asked)) -- of all prompts at once: one call instead of one for each
for p = 1, #ARGV do
  local before, at = last[p - 1] or 0, last[p]
  while at > before and #replies[p] == 0 do
    if found[at] then compare(ARGV[p], found[at], 4 ^ (at - before - 1), replies[p]) end
    at = at - 1
  end
end
return replies
