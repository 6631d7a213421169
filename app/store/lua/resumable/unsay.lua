-- Removes an item from a kept conversation.
--
-- KEYS  1 conversation-items:<id>  2 kept-bytes  3 kept-expiring     ARGV  1 id  2 API key  3 item (JSON)
local gone = redis.call('LREM', KEYS[1], 1, ARGV[3])
if gone > 0 then count(ARGV[1], ARGV[2], 0 - #ARGV[3] - 32) end
return gone
