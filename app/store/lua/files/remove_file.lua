-- Removes the record of a file, and its bytes from its API key's sum. Sent twice, the second changes nothing.
--
-- KEYS  1 file:<id>  2 files-of:<key>  3 files-expiring  4 file-bytes:<key>  5 file-bytes:*
-- ARGV  1 id  2 bytes as in add_file.lua, 9
local known = redis.call('GET', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
if known then
  redis.call('UNLINK', KEYS[1])
  local size = cmsgpack.unpack(known)[5] + ARGV[2]
  if redis.call('EXISTS', KEYS[4]) == 1 then redis.call('DECRBY', KEYS[4], size) end
  if redis.call('EXISTS', KEYS[5]) == 1 and redis.call('DECRBY', KEYS[5], size) <= 0 then redis.call('UNLINK', KEYS[5]) end
end
if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('UNLINK', KEYS[4]) end
return 1
