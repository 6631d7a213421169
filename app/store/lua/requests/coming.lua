-- How much of some prompts caches of a pool will have, since requests that begin alike wait there. Reads only.
--
-- KEYS     1 starting:<pool>
-- ARGV     1 points from one to the next of those that a prompt leaves for others, 0: it leaves the one at its end
--          2… prompts as packed hashes of the points where they may resume: of their blocks, for most models
-- returns  for each prompt a list: place, blocks, …: leading blocks that a request that waits for its prefill there will
--          leave in its cache; of some of those that share the most, as far as powers of four tell
local call, sub, byte, floor = redis.call, string.sub, string.byte, math.floor
local every = tonumber(ARGV[1])

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
      local blocks = shared(prompt, waiting, at, low, math.min(#prompt, #waiting - at) / 8)
      if blocks * 8 < #waiting - at then blocks = every > 0 and blocks - blocks % every or 0 end
      if blocks > 0 then out[#out + 1], out[#out + 2] = sub(waiting, 1, at - 1), blocks end
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
local found = call('HMGET', KEYS[1], unpack(asked)) -- of all prompts at once: one call instead of one for each
for p = 1, #ARGV - 1 do
  local before, at = last[p - 1] or 0, last[p]
  while at > before and #replies[p] == 0 do
    if found[at] then compare(ARGV[p + 1], found[at], 4 ^ (at - before - 1), replies[p]) end
    at = at - 1
  end
end
return replies
