-- Changes the StoredChat of a kept answer, if there is room for it; one that is no longer than before always.
--
-- KEYS  1 kept:<id>  2 kept-bytes  3 kept-expiring
-- ARGV  1 id  2 StoredChat (msgpack)  3 kept bytes of its API key at most  4 of all keys at most
-- returns {the limit reached: '', 'key' or 'all'; ms until the next kept answer or conversation expires};
--         0: it is not known (any more)
local key, before = unpack(redis.call('HMGET', KEYS[1], 'key', 'chat'))
if not before then return 0 end
local more = #ARGV[2] - #before
if more > 0 then
  local full, wait_ms = no_room(key, more, ARGV[3], ARGV[4])
  if full then return {full, wait_ms} end
end
redis.call('HSET', KEYS[1], 'chat', ARGV[2])
count(ARGV[1], key, more)
return {'', 0}
