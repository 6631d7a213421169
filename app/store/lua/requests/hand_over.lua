-- Prepended to release.lua, whose 'left' it precedes: writes the record of a computed prompt, unless nobody awaits it,
-- and puts its decode task into its queue.
--
-- KEYS  6 the queue
-- ARGV  4 the record  5 the message
redis.call('SET', KEYS[1], ARGV[4], 'XX', 'KEEPTTL')
redis.call('LPUSH', KEYS[6], ARGV[5])
