-- Changes the record of a kept conversation, if there is room for it; one that is no longer than before always.
--
-- KEYS  1 conversation:<id>  2 conversation-items:<id>  3 kept-bytes  4 kept-expiring
-- ARGV  1 id  2 API key  3 life, ms, from now on  4 record (JSON)
--       5 kept bytes of that API key at most  6 of all keys at most
-- returns {the limit reached: '', 'key' or 'all'; ms until the next kept answer or conversation expires};
--         0: that API key has no such conversation (any more)
local key, before = unpack(redis.call('HMGET', KEYS[1], 'key', 'record'))
if key ~= ARGV[2] then return 0 end
-- Also one that is refused lives on: no_room() counts what has expired no more, and this one is there.
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
expires_in(ARGV[1], key, ARGV[3])
local more = #ARGV[4] - #before
if more > 0 then
  local full, wait_ms = no_room(key, more, ARGV[5], ARGV[6])
  if full then return {full, wait_ms} end
end
count(ARGV[1], key, more)
redis.call('HSET', KEYS[1], 'record', ARGV[4])
return {'', 0}
