-- How much of some prompts caches of a pool will have, since requests that begin alike wait there. Reads only.
--
-- KEYS     1 starting:<pool>     ARGV  prompts as packed block hashes
-- returns  for each prompt a list: place, blocks, …: leading blocks that a request that waits for its prefill there will
--          leave in its cache; of some of those that share the most, as far as powers of four tell
local call, sub, floor = redis.call, string.sub, math.floor

-- The last block that two prompts of `n` blocks or more share; they share `low`.
local function shared(one, other, low, n)
  while low < n do
    local middle = floor((low + n + 1) / 2)
    if sub(one, middle * 8 - 7, middle * 8) == sub(other, middle * 8 - 7, middle * 8) then
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
      local other = sub(waiting, at + 1)
      out[#out + 1] = sub(waiting, 1, at - 1)
      out[#out + 1] = shared(prompt, other, low, math.min(#prompt, #other) / 8)
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
