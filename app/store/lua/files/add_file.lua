-- Records a file of an API key, if there is room for it.
--
-- KEYS     1 file:<id>  2 files-of:<key>  3 files-expiring  4 file-bytes:<key>  5 file-bytes:*
-- ARGV     1 id  2 StoredFile (msgpack)  3 its bytes  4 when it was made  5 when it expires, or ''
--          6 bytes that all files of the key may have, or '' for any  7 how many there may be  8 the prefix of file:<id>
--          9 bytes that a file counts more than it has, for its record  10 bytes that all files may have; '' if 6 is
-- returns  nil; or {bytes, files} that the key has, and all bytes, when there is no room. Sent twice, the second
--          changes nothing.
local function size(record) return record and cmsgpack.unpack(record)[5] + ARGV[9] or 0 end

local known = redis.call('GET', KEYS[1])
local used = tonumber(redis.call('GET', KEYS[4]))
if not used then -- its first file, or an older version has not counted its files
  used = 0
  for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do used = used + size(redis.call('GET', ARGV[8] .. id)) end
end
local in_all = tonumber(redis.call('GET', KEYS[5]) or 0) -- of an older version's files nothing, until it is audited
local more = ARGV[3] + ARGV[9]
if ARGV[6] ~= '' and not known then
  local files = redis.call('ZCARD', KEYS[2])
  local full = used + more > tonumber(ARGV[6]) or in_all + more > tonumber(ARGV[10])
  if full or files >= tonumber(ARGV[7]) then return {used, files, in_all} end
end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
if ARGV[5] ~= '' then redis.call('ZADD', KEYS[3], ARGV[5], ARGV[1]) end
redis.call('SET', KEYS[4], used + more - size(known))
redis.call('SET', KEYS[5], in_all + more - size(known))
return false
