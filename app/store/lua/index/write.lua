-- Adds one cache to the entries of blocks that it holds, or removes it.
--
-- KEYS  1 cached:<pool>  2 cached-count:<pool>
-- ARGV  1 the cache's packed number  2 'add' or 'remove'  3 packed block hashes, at most some thousands (`unpack`)
-- returns how many entries it was added to, or removed from. Sent twice, the second changes nothing.
local sub = string.sub
local own, adds, packed = ARGV[1], ARGV[2] == 'add', ARGV[3]
local number = struct.unpack('>I4', own)

-- Where in the sorted packed `caches` the number is, or has to be inserted: bytes before it, and whether it is there.
local function find(caches)
  local low, high = 0, #caches / 4
  while low < high do
    local middle = math.floor((low + high) / 2)
    local other = struct.unpack('>I4', caches, middle * 4 + 1)
    if other == number then return middle * 4, true end
    if other < number then low = middle + 1 else high = middle end
  end
  return low * 4, false
end

local hashes, seen = {}, {}
for i = 1, #packed, 8 do
  local hash = sub(packed, i, i + 7)
  if not seen[hash] then hashes[#hashes + 1] = hash end
  seen[hash] = true
end
local entries, set, gone = redis.call('HMGET', KEYS[1], unpack(hashes)), {}, {}
for i, hash in ipairs(hashes) do
  local caches = entries[i]
  if not caches then
    if adds then set[#set + 1], set[#set + 2] = hash, own end
  elseif caches == own then
    if not adds then gone[#gone + 1] = hash end
  else
    local at, there = find(caches)
    if adds and not there then
      set[#set + 1], set[#set + 2] = hash, sub(caches, 1, at) .. own .. sub(caches, at + 1)
    elseif there and not adds then
      set[#set + 1], set[#set + 2] = hash, sub(caches, 1, at) .. sub(caches, at + 5)
    end
  end
end
local changed = #set / 2 + #gone
if #gone > 0 then redis.call('HDEL', KEYS[1], unpack(gone)) end
if #set > 0 then redis.call('HSET', KEYS[1], unpack(set)) end
if changed > 0 then redis.call('HINCRBY', KEYS[2], own, adds and changed or -changed) end
return changed
