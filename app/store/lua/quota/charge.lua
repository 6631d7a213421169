-- Charges one API key's two buckets, of requests and of tokens, both or neither.
--
-- KEYS     1 spent:<name>
-- ARGV     1 requests a minute (0: no limit)  2 requests to charge  3 tokens a minute (0: no limit)  4 tokens to charge
--          5 charge only if each bucket has at least 1 left, and this share of a minute's worth; '': in any case
-- returns  {what refused: '', 'requests' or 'tokens', requests left, tokens left}, the numbers as text, with fractions
--
-- A bucket holds a minute's worth and fills evenly. It may go below zero, since an answer's length is known only at its
-- end: the next requests wait until it is filled, so the limit holds over time. A full bucket needs no record, so the
-- hash lives until both are full.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local record = redis.call('HMGET', KEYS[1], 'requests', 'tokens', 'at')
local passed = math.max(0, now - (tonumber(record[3]) or now)) -- a replica's clock may be behind after a failover

local refused, left, full_in, names = '', {}, 0, {'requests', 'tokens'}
for i, kind in ipairs(names) do
  local limit = tonumber(ARGV[2 * i - 1])
  left[i] = math.min(limit, (tonumber(record[i]) or limit) + passed * limit / 60000)
  local least = ARGV[5] == '' and -math.huge or math.max(1, limit * ARGV[5])
  if refused == '' and limit > 0 and left[i] < least then refused = kind end
end
if refused == '' then
  for i, kind in ipairs(names) do
    local limit = tonumber(ARGV[2 * i - 1])
    if limit > 0 then
      left[i] = left[i] - tonumber(ARGV[2 * i])
      full_in = math.max(full_in, (limit - left[i]) * 60000 / limit)
      redis.call('HSET', KEYS[1], kind, tostring(left[i]))
    end
  end
  redis.call('HSET', KEYS[1], 'at', now)
  redis.call('PEXPIRE', KEYS[1], math.ceil(full_in) + 1)
end
return {refused, tostring(left[1]), tostring(left[2])}
