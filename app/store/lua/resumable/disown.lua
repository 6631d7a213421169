-- An API replica does not make these kept answers any more, since they have ended, or another replica owns them. One that
-- it owns, in a later epoch, it will make again.
--
-- KEYS  1 kept-of:<api>  2… kept:<id>     ARGV  1 api  2… ids
for i = 2, #KEYS do
  local owner, ended = unpack(redis.call('HMGET', KEYS[i], 'owner', 'end'))
  if owner ~= ARGV[1] or ended then redis.call('SREM', KEYS[1], ARGV[i]) end
end
