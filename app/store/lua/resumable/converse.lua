-- Adds items to a kept conversation, or creates it. A response's items are added once, and by its owner only.
--
-- KEYS  1 conversation:<id>  2 conversation-items:<id>  3 kept:<response>, or the first once more
--       4 kept-bytes  5 kept-expiring
-- ARGV  1 id  2 API key  3 life, ms, from now on  4 record (JSON) to create it with; '' if it must exist
--       5 response, or ''  6 its epoch  7 items at most  8 kept bytes of that API key at most  9 of all keys at most
--       (7 to 9 '': no limit)  10 bytes of the items that are not in Redis  11… items (JSON)
-- returns {the limit reached: '', 'key', 'all' or 'items'; 'locked': a response is being made in it; ms until the next kept answer or conversation expires};
--         0: it is not known; -1: another replica owns the response.
local begun = ARGV[4] ~= ''
if not begun and redis.call('HGET', KEYS[1], 'key') ~= ARGV[2] then return 0 end
if ARGV[5] ~= '' then
  if redis.call('HGET', KEYS[3], 'epoch') ~= ARGV[6] then return -1 end
  if redis.call('HSETNX', KEYS[1], 'of:' .. ARGV[5], '1') == 0 then return {'', 0} end
elseif locked(KEYS[1]) then
  return {'locked', 0}
end
local bytes = (begun and #ARGV[4] + 512 or 0) + ARGV[10]
for i = 11, #ARGV do bytes = bytes + #ARGV[i] + 32 end
if ARGV[7] ~= '' and redis.call('LLEN', KEYS[2]) + #ARGV - 10 > tonumber(ARGV[7]) then return {'items', 0} end
local full, wait_ms = no_room(ARGV[2], bytes, ARGV[8], ARGV[9])
if full then return {full, wait_ms} end
count(ARGV[1], ARGV[2], bytes)
if begun then redis.call('HSET', KEYS[1], 'record', ARGV[4], 'key', ARGV[2]) end
if ARGV[10] ~= '0' then redis.call('HINCRBY', KEYS[1], 'elsewhere', ARGV[10]) end
for i = 11, #ARGV do redis.call('RPUSH', KEYS[2], ARGV[i]) end
redis.call('HINCRBY', KEYS[1], 'changes', 1) -- for who reads them in parts
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
expires_in(ARGV[1], ARGV[2], ARGV[3])
return {'', 0}
