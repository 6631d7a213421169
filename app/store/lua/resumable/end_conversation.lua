-- Deletes a kept conversation.
--
-- KEYS  1 conversation:<id>  2 conversation-items:<id>  3 kept-bytes  4 kept-expiring     ARGV  1 id  2 API key
release(ARGV[1], ARGV[2])
return redis.call('DEL', KEYS[1], KEYS[2])
