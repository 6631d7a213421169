-- One step of removing caches that are gone from the entries of all blocks.
--
-- KEYS  1 cached:<pool>  2 cached-count:<pool>
-- ARGV  1 cursor of HSCAN, '0' at first  2 entries to look at, about  3… packed numbers of caches that are gone
-- returns the next cursor; after '0' nothing of them is left, and their counts are removed, too
local call, sub = redis.call, string.sub
call('HDEL', KEYS[2], '') -- nothing; Redis without memory lets scripts that have removed something write
local gone, removed = {}, {}
for i = 3, #ARGV do gone[ARGV[i]] = true end
local cursor, entries = unpack(call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2]))
for i = 1, #entries, 2 do
  local caches, kept = entries[i + 1], {}
  for at = 1, #caches, 4 do
    local number = sub(caches, at, at + 3)
    if gone[number] then removed[number] = (removed[number] or 0) + 1 else kept[#kept + 1] = number end
  end
  if #kept == 0 then
    call('HDEL', KEYS[1], entries[i])
  elseif #kept * 4 < #caches then
    call('HSET', KEYS[1], entries[i], table.concat(kept))
  end
end
-- As each step: who is not gone after all sees from its count that blocks are missing.
for number, count in pairs(removed) do call('HINCRBY', KEYS[2], number, -count) end
if cursor == '0' then call('HDEL', KEYS[2], unpack(ARGV, 3)) end
return cursor
