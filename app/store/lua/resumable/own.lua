-- Records that an API replica owns a request whose answer is kept, if there is room for it.
--
-- KEYS  1 kept:<id>  2 kept-of:<api>  3 answer-owners  4 joined:<…>, or the first once more
--       5 conversation:<id>, or the first once more  6 conversation-items:<id>, or the first once more
--       7 kept-bytes  8 kept-expiring
-- ARGV  1 id  2 api  3 Kept (msgpack)  4 life, ms  5 epoch  6 the reply to a later request with the same idempotency key, or ''
--       7 an earlier such reply that is void now  8 its API key
--       9 kept bytes of that API key at most  10 of all keys at most ('': no limit)
--       11 StoredChat (msgpack), or ''  12 how many items of the conversation the request has read; '': not to be checked
--       13 bytes of it that are not in Redis
-- returns {the limit reached: '', 'key' or 'all'; 'locked': another response is being made in the conversation, or was
--          since its items were read; the reply of the first request with that idempotency key or ARGV 6,
--          ms until the next kept answer expires}. Sent twice, the second changes nothing.
if ARGV[6] ~= '' then
  local known = redis.call('GET', KEYS[4])
  if known and known ~= ARGV[6] and known ~= ARGV[7] then
    return {'', known, 0}
  end
end
local converses = KEYS[5] ~= KEYS[1] and redis.call('EXISTS', KEYS[5]) == 1
local is_locked = converses and locked(KEYS[5], KEYS[1])
if converses and ARGV[12] ~= '' and redis.call('HGET', KEYS[5], 'busy') ~= KEYS[1] then
  if is_locked or redis.call('LLEN', KEYS[6]) ~= tonumber(ARGV[12]) then return {'locked', '', 0} end
end
if redis.call('HEXISTS', KEYS[7], 'id:' .. ARGV[1]) == 0 then
  local bytes = #ARGV[3] + #ARGV[11] + 512 + ARGV[13]
  local full, wait_ms = no_room(ARGV[8], bytes, ARGV[9], ARGV[10])
  if full then return {full, '', wait_ms} end
  count(ARGV[1], ARGV[8], bytes)
end
if ARGV[6] ~= '' then redis.call('SET', KEYS[4], ARGV[6], 'PX', ARGV[4]) end
redis.call('HSET', KEYS[1], 'record', ARGV[3], 'owner', ARGV[2], 'epoch', ARGV[5], 'key', ARGV[8])
if ARGV[9] ~= '' then redis.call('HSET', KEYS[1], 'most', ARGV[9]) end
if ARGV[13] ~= '0' then redis.call('HSET', KEYS[1], 'elsewhere', ARGV[13]) end
if ARGV[11] ~= '' then redis.call('HSET', KEYS[1], 'chat', ARGV[11]) end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
if converses and not is_locked then redis.call('HSET', KEYS[5], 'busy', KEYS[1]) end
expires_in(ARGV[1], ARGV[8], ARGV[4])
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('SADD', KEYS[3], ARGV[2])
return {'', ARGV[6], 0}
