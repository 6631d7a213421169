-- Requests that have ended: their samples are removed, but for those that others hold.
--
-- ARGV     1 ms that samples live  2 … the requests
for i = 2, #ARGV do release(ARGV[i], tonumber(ARGV[1])) end
