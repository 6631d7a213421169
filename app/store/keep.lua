-- Writes down that an API replica owns a request whose answer is kept.
--
-- KEYS  1 kept:<id>  2 kept-of:<api>  3 keepers  4 joined:<…>, or the first once more
-- ARGV  1 id  2 api  3 Kept (msgpack)  4 life, ms  5 epoch  6 what to say to who asks with the same key ('': nothing)
--       7 what was said, and doesn't hold any more
-- returns what was said to who asked first with that key, or ARGV 6. Sent twice it changes nothing.
if ARGV[6] ~= '' then
  local known = redis.call('GET', KEYS[4])
  if known and known ~= ARGV[6] and known ~= ARGV[7] then
    return known
  end
  redis.call('SET', KEYS[4], ARGV[6], 'PX', ARGV[4])
end
redis.call('HSET', KEYS[1], 'record', ARGV[3], 'owner', ARGV[2], 'epoch', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('SADD', KEYS[3], ARGV[2])
return ARGV[6]
