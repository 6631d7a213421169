-- Nobody has to look after the kept answers of an API replica any more, unless there are some.
--
-- KEYS  1 answer-owners  2 kept-of:<api>     ARGV  1 api
if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('SREM', KEYS[1], ARGV[1]) end
