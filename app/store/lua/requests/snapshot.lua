-- The live places of one pool, their reservations, and how much of some prompts they have cached. Reads only.
--
-- KEYS     1 pool:<pool>    ARGV  1 the deployment's prefix  2 the pool's name  3… prompts as packed block hashes
-- returns  {limits, lately, row, row, …}; limits: the hash limits:<pool> as a flat list; lately: 1 when the pool has
--          a worker, or had one lately, else 0; row: a flat list of
--          Lease (msgpack), rank, requests, blocks, tokens, waiting, ms since the first waiting one began, pulls,
--          aside requests, their blocks,
--          then two for each prompt: leading blocks that are cached, and that are cached or coming
--
-- A cached set is prefix-closed (children are evicted before their parents), so the match is a binary search:
-- O(places × log blocks) for a prompt, plus the number of waiting requests. Workers without a lease are left out; an
-- API replica removes them.
local prefix, pool = ARGV[1], ARGV[2]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local call, sub, floor = redis.call, string.sub, math.floor

-- The last block of prompt `h` from `low` on, of `n`, for which `has(hash, index)` is true.
local function last(h, low, n, has)
  while low < n do
    local middle = floor((low + n + 1) / 2)
    if has(sub(h, middle * 8 - 7, middle * 8), middle) then low = middle else n = middle - 1 end
  end
  return low
end

local key -- of the cache that `cached` and `guessed` look into
local function cached(hash) return call('SISMEMBER', key, hash) == 1 end
local function guessed(hash)
  local expires = call('ZSCORE', key, hash)
  return expires and tonumber(expires) > now
end

-- The leading blocks with those that requests waiting for their prefill there will leave in the cache.
local function on_its_way(runs, rank, h, low, n)
  local first = sub(h, 1, 8) .. rank
  for i = 1, math.min(#runs, 32), 2 do
    if low < n and runs[i + 1] == first then
      local blocks = prefix .. 'prefix:' .. runs[i]
      local function same(hash, index) return call('GETRANGE', blocks, index * 8 - 8, index * 8 - 1) == hash end
      if same(sub(h, low * 8 + 1, low * 8 + 8), low + 1) then low = last(h, low + 1, n, same) end
    end
  end
  return low
end

local fields = {} -- of load:<worker>, by rank
local function fields_of(rank)
  if not fields[rank] then
    fields[rank] = {
      'requests.' .. rank, 'blocks.' .. rank, 'tokens.' .. rank, 'waiting.' .. rank, 'since.' .. rank, 'pulls.' .. rank,
      'requests.' .. rank .. 'a', 'blocks.' .. rank .. 'a',
    }
  end
  return unpack(fields[rank])
end

local function row(id, lease, rank, has)
  local load = call('HMGET', prefix .. 'load:' .. id, fields_of(rank))
  local waiting = tonumber(load[4] or 0)
  local r = {
    lease, rank, tonumber(load[1] or 0), tonumber(load[2] or 0), tonumber(load[3] or 0), waiting,
    load[5] and math.max(0, now - load[5]) or 0, tonumber(load[6] or 0),
    tonumber(load[7] or 0), tonumber(load[8] or 0),
  }
  local runs = waiting > 0 and #ARGV > 2 and call('HGETALL', prefix .. 'prefilling:' .. id) or {}
  for p = 3, #ARGV do
    local h = ARGV[p]
    local n, low = #h / 8, 0
    if n > 0 and has(sub(h, 1, 8)) then low = last(h, 1, n, has) end
    r[#r + 1] = low
    r[#r + 1] = #runs > 0 and on_its_way(runs, rank, h, low, n) or low
  end
  return r
end

local out = {call('HGETALL', prefix .. 'limits:' .. pool), 0}
local members, names = call('HGETALL', KEYS[1]), {}
for i = 1, #members, 2 do
  names[#names + 1] = prefix .. 'worker:' .. members[i]
end
local leases = #names > 0 and call('MGET', unpack(names)) or {} -- unpack takes some thousands
for i = 1, #members, 2 do
  local id, lease = members[i], leases[(i + 1) / 2]
  if lease then
    out[2] = 1
    local ranks, events = string.match(members[i + 1], '(%d+),(%d)')
    local has = events == '1' and cached or guessed
    local caches = prefix .. (events == '1' and 'kv:' or 'predicted:') .. pool .. ':' .. id
    for rank = 0, ranks - 1 do
      key = rank == 0 and caches or caches .. '.' .. rank
      out[#out + 1] = row(id, lease, rank, has)
    end
  end
end
if out[2] == 0 then out[2] = call('EXISTS', prefix .. 'seen:' .. pool) end
return out
