-- Gives a kept request of a dead API replica to another one; or to its owner itself, if that doesn't run it.
-- Sent twice, the second finds a new owner, the caller: which then finds that it owns the request and doesn't run it.
--
-- KEYS  1 kept:<id>  2 kept-of:<dead>  3 kept-of:<api>  4 answer-owners     ARGV  1 id  2 dead  3 api
-- returns  {Kept (msgpack), epoch}; nothing when it has ended, has no record, or another replica was first
redis.call('SREM', KEYS[2], ARGV[1])
local owner, ended, record = unpack(redis.call('HMGET', KEYS[1], 'owner', 'end', 'record'))
if owner ~= ARGV[2] or ended or not record then
  return false
end
redis.call('HSET', KEYS[1], 'owner', ARGV[3])
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('SADD', KEYS[4], ARGV[3])
return {record, redis.call('HINCRBY', KEYS[1], 'epoch', 1)}
