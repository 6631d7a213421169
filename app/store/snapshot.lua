-- The live places of one pool, what is reserved there, and how much of some prompts lies there. Reads only.
--
-- KEYS     1 pool:<pool>    ARGV  1 the deployment's prefix  2 the pool's name  3… prompts as packed block hashes
-- returns  {limits, row, row, …}; limits: the hash limits:<pool> as a flat list; row: a flat list of
--          Lease (msgpack), rank, requests, blocks, tokens, waiting, ms since the head of line began,
--          then two for each prompt: leading blocks that are cached there, and that are cached or on their way
--
-- A cached set is prefix-closed (children are evicted before their parents), so the match is a binary search:
-- O(places × log blocks) for a prompt, and the number of waiting requests on top. A worker whose lease is gone is
-- left out; an API replica prunes it.
local prefix, pool = ARGV[1], ARGV[2]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- The last block of prompt `h` from `low` on, of `n`, for which `has(hash, index)` is true.
local function last(h, low, n, has)
  while low < n do
    local middle = math.floor((low + n + 1) / 2)
    if has(string.sub(h, middle * 8 - 7, middle * 8), middle) then low = middle else n = middle - 1 end
  end
  return low
end

local function cached_in(key, predicted)
  if predicted then
    return function(hash)
      local expires = redis.call('ZSCORE', key, hash)
      return expires and tonumber(expires) > now
    end
  end
  return function(hash) return redis.call('SISMEMBER', key, hash) == 1 end
end

-- What a request that waits for its prefill there will leave in the cache counts as well.
local function on_its_way(runs, rank, h, low, n)
  for i = 1, math.min(#runs, 32), 2 do
    if low < n and runs[i + 1] == rank then
      local key = prefix .. 'prefix:' .. runs[i]
      local function same(hash, index) return redis.call('GETRANGE', key, index * 8 - 8, index * 8 - 1) == hash end
      if same(string.sub(h, low * 8 + 1, low * 8 + 8), low + 1) then low = last(h, low + 1, n, same) end
    end
  end
  return low
end

local function row(id, lease, rank, predicted, place)
  local r = {lease, rank}
  local load = redis.call('HMGET', prefix .. 'load:' .. id,
    'requests.' .. rank, 'blocks.' .. rank, 'tokens.' .. rank, 'waiting.' .. rank, 'since.' .. rank)
  for i = 1, 4 do r[i + 2] = tonumber(load[i] or 0) end
  r[7] = load[5] and now - load[5] or 0
  local runs = {}
  if #ARGV > 2 and r[6] > 0 then runs = redis.call('HGETALL', prefix .. 'prefilling:' .. id) end
  local has = cached_in(prefix .. (predicted and 'predicted:' or 'kv:') .. pool .. ':' .. place, predicted)
  for p = 3, #ARGV do
    local h = ARGV[p]
    local n, low = #h / 8, 0
    if n > 0 and has(string.sub(h, 1, 8)) then low = last(h, 1, n, has) end
    r[#r + 1] = low
    r[#r + 1] = on_its_way(runs, tostring(rank), h, low, n)
  end
  return r
end

local out = {redis.call('HGETALL', prefix .. 'limits:' .. pool)}
local members = redis.call('HGETALL', KEYS[1])
for i = 1, #members, 2 do
  local id = members[i]
  local lease = redis.call('GET', prefix .. 'worker:' .. id)
  if lease then
    local ranks, events = string.match(members[i + 1], '(%d+),(%d)')
    for rank = 0, ranks - 1 do
      out[#out + 1] = row(id, lease, rank, events == '0', rank == 0 and id or id .. '.' .. rank)
    end
  end
end
return out
