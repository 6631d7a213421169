-- Removes an item from a kept conversation.
--
-- KEYS  1 conversation:<id>  2 conversation-items:<id>  3 kept-bytes  4 kept-expiring
-- ARGV  1 id  2 API key  3 item (JSON)  4 bytes of it that are not in Redis
local gone = redis.call('LREM', KEYS[2], 1, ARGV[3])
if gone > 0 then
  count(ARGV[1], ARGV[2], 0 - #ARGV[3] - ARGV[4] - 32)
  if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HINCRBY', KEYS[1], 'changes', 1) end
end
return gone
