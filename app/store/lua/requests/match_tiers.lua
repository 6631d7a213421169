-- Which caches and tiers hold the blocks of some prompts. Reads only.
--
-- KEYS     1 cached:<pool>  2 tiered:<pool>
-- ARGV     prompts as packed block hashes
-- returns  for each prompt a list: how many blocks, the caches and the tiers (packed numbers) that hold each of these;
--          how many, … : as far as each block is somewhere
--
-- Tiers evict in any order, so that a block may be held where an earlier one is not: all blocks are looked at.
local call, sub = redis.call, string.sub
local AT_ONCE = 1000 -- blocks (`unpack`)

local function matched(h, out)
  local n, last_cached, last_tiered = #h / 8, nil, nil
  for first = 1, n, AT_ONCE do
    local hashes = {}
    for i = first, math.min(n, first + AT_ONCE - 1) do hashes[#hashes + 1] = sub(h, i * 8 - 7, i * 8) end
    local cached, tiered = call('HMGET', KEYS[1], unpack(hashes)), call('HMGET', KEYS[2], unpack(hashes))
    for i = 1, #hashes do
      local here, behind = cached[i] or '', tiered[i] or ''
      if here == '' and behind == '' then return end
      if here == last_cached and behind == last_tiered then
        out[#out - 2] = out[#out - 2] + 1
      else
        out[#out + 1], out[#out + 2], out[#out + 3] = 1, here, behind
        last_cached, last_tiered = here, behind
      end
    end
  end
end

local replies = {}
for p = 1, #ARGV do
  replies[p] = {}
  matched(ARGV[p], replies[p])
end
return replies
