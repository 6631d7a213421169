-- The live workers of some pools and what is reserved on them, in one call. Reads only.
--
-- KEYS     pool:<pool>, one for each pool            ARGV[1]  the deployment's prefix
-- returns  flat list, four for each live worker: Lease (msgpack), requests, blocks, tokens
-- O(workers). A worker whose lease is gone is left out; an API replica prunes it.
local out = {}
for _, pool in ipairs(KEYS) do
  for _, id in ipairs(redis.call('SMEMBERS', pool)) do
    local lease = redis.call('GET', ARGV[1] .. 'worker:' .. id)
    if lease then
      local load = redis.call('HMGET', ARGV[1] .. 'load:' .. id, 'requests', 'blocks', 'tokens')
      local n = #out
      out[n + 1] = lease
      out[n + 2] = tonumber(load[1] or 0)
      out[n + 3] = tonumber(load[2] or 0)
      out[n + 4] = tonumber(load[3] or 0)
    end
  end
end
return out
