-- Reads some items of a kept conversation: not more bytes at once than others can wait for, or one item.
--
-- KEYS  1 conversation:<id>  2 conversation-items:<id>
-- ARGV  1 index of the first one, from the beginning, or from the end if negative  2 1 or -1: the way from there
--       3 items at most  4 bytes at most
-- returns {how often its items have changed, the items (JSON)}; nil: it is not known
if redis.call('EXISTS', KEYS[1]) == 0 then return nil end
local found, at, bytes = {}, tonumber(ARGV[1]), 0
while #found < tonumber(ARGV[3]) do
  local item = redis.call('LINDEX', KEYS[2], at)
  if not item then break end
  bytes = bytes + #item
  if #found > 0 and bytes > tonumber(ARGV[4]) then break end
  found[#found + 1] = item
  at = at + tonumber(ARGV[2])
end
return {redis.call('HGET', KEYS[1], 'changes') or '0', found}
