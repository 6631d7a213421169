-- Corrects a worker's reservations: drops those of requests that nobody awaits, and counts the sums anew.
--
-- KEYS  1 reservations:<worker>  2 load:<worker>  3 prefilling:<worker>
-- ARGV  1 the deployment's prefix  2… dead API replicas, whose requests nobody awaits
-- returns  {reserved runs, API replicas that await them and have no lease, dropped runs}
-- O(reservations). For reservations that were not released: after a lost message, the death of an API replica, or a
-- Redis that came back without its last second.
local prefix, sums, waiting, live, dropped = ARGV[1], {}, {}, {}, {}
local dead, alive, missing = {}, {}, {}
for i = 2, #ARGV do dead[ARGV[i]] = true end
local runs = redis.call('HGETALL', KEYS[3])
for i = 1, #runs, 2 do waiting[runs[i]] = true end

local function lives(api)
  if api == '' then return true end -- placed by an older version, whose replicas have no lease
  if alive[api] == nil then
    alive[api] = redis.call('EXISTS', prefix .. 'api:' .. api) == 1
    if not alive[api] then missing[#missing + 1] = api end
  end
  return alive[api]
end

local held, kept = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #held, 2 do
  local run = held[i]
  local blocks, tokens, rank, pulls, api = string.match(held[i + 1], '(%d+),(%d+),(%d+a?),?(%d*),?(.*)')
  local orphaned = not lives(api) and dead[api]
  if orphaned then redis.call('UNLINK', prefix .. 'request:' .. run) end
  if orphaned or redis.call('EXISTS', prefix .. 'request:' .. run) == 0 then
    redis.call('HDEL', KEYS[1], run)
    dropped[#dropped + 1] = run
  else
    kept[#kept + 1] = run
    live[run] = true
    local function add(what, value) sums[what .. '.' .. rank] = (sums[what .. '.' .. rank] or 0) + value end
    add('requests', 1)
    add('blocks', blocks)
    add('tokens', waiting[run] and tokens or 0)
    add('pulls', waiting[run] and (tonumber(pulls) or 0) or 0)
    add('waiting', waiting[run] and 1 or 0)
  end
end
for run in pairs(waiting) do
  if not live[run] then
    redis.call('HDEL', KEYS[3], run)
    redis.call('UNLINK', prefix .. 'prefix:' .. run)
  end
end
for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
  if string.sub(field, 1, 6) ~= 'since.' and not sums[field] then sums[field] = 0 end
end
for field, value in pairs(sums) do
  redis.call('HSET', KEYS[2], field, value)
end
return {kept, missing, dropped}
