-- Counts a request's samples, before they are written. Repeated, it only makes them live longer.
--
-- ARGV     1 request  2 key and tenant, "<key>|<tenant>"; none where clients are not told apart
--          3 ms that they live, unless the request is renewed  4 the most bytes of all, of a tenant, of a key
--          5 … hash and bytes of each sample, which differ
-- returns  {whose bytes would be too many, how many it has, the most}; or {'', bytes of each sample that are there}
for _, expired in ipairs(redis.call('ZRANGE', KEYS[2], '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)) do
  release(expired, tonumber(ARGV[3]))
end
local hashes, there = {}, {''}
for i = 5, #ARGV, 2 do
  hashes[#hashes + 1] = ARGV[i]
  there[#there + 1] = redis.call('STRLEN', KEYS[3] .. ARGV[i])
end
local record = ARGV[2] .. '|' .. table.concat(hashes, ' ')
if redis.call('HEXISTS', KEYS[1], 'of:' .. ARGV[1]) == 0 then
  local owners, most = parts(record), {}
  for one in string.gmatch(ARGV[4], '%S+') do most[#most + 1] = tonumber(one) end
  for i, owner in ipairs(owners) do
    local more = 0
    for n, hash in ipairs(hashes) do
      if had('n:' .. hash .. '|' .. owner) == 0 then more = more + ARGV[4 + 2 * n] end
    end
    if had(owner) + more > most[i] then return {owner, had(owner), most[i]} end
  end
  for n, hash in ipairs(hashes) do
    local size = tonumber(ARGV[4 + 2 * n])
    redis.call('HSETNX', KEYS[1], 'size:' .. hash, size)
    for _, owner in ipairs(owners) do
      if add('n:' .. hash .. '|' .. owner, 1) == 1 then add(owner, size) end
    end
  end
  redis.call('HSET', KEYS[1], 'of:' .. ARGV[1], record)
end
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
for _, hash in ipairs(hashes) do redis.call('PEXPIRE', KEYS[3] .. hash, ARGV[3], 'GT') end
return there
