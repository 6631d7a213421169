-- Requests that are in progress: their samples live longer. Also of another process, which adopts them.
--
-- ARGV     1 ms  2 … the requests
for i = 2, #ARGV do
  local record = redis.call('HGET', KEYS[1], 'of:' .. ARGV[i])
  if record then
    redis.call('ZADD', KEYS[2], now + ARGV[1], ARGV[i])
    local _, hashes = parts(record)
    for _, hash in ipairs(hashes) do redis.call('PEXPIRE', KEYS[3] .. hash, ARGV[1], 'GT') end
  end
end
