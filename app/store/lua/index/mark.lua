-- Marks a write of a cache's entries, if the one before it is still there: so the mark of the last one tells of all.
--
-- KEYS  1 cached-count:<pool>
-- ARGV  1 the field  2 the mark of the write before, '' for the first  3 the mark of this one
-- Sent twice, the second changes nothing.
redis.call('HDEL', KEYS[1], '') -- nothing; Redis without memory lets scripts that have removed something write
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') == ARGV[2] then redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end
return redis.status_reply('OK')
