-- Corrects a worker's reservations: drops those of requests that nobody awaits, and counts the sums anew.
--
-- KEYS  1 reservations:<worker>  2 loads:<pool>  3 prefilling:<worker>  4 load:<worker>
-- ARGV  1 the deployment's prefix  2 pool  3 worker  4 its data-parallel ranks  5… dead API replicas, whose requests
--       nobody awaits
-- returns  {reserved runs, API replicas that await them and have no lease, dropped runs}
-- O(reservations). For reservations that were not released: after a lost message, the death of an API replica, or a
-- Redis that came back without its last second.
local prefix, waiting, live, dropped = ARGV[1], {}, {}, {}
local dead, alive, missing = {}, {}, {}
for i = 5, #ARGV do dead[ARGV[i]] = true end
local runs = redis.call('HGETALL', KEYS[3])
for i = 1, #runs, 2 do waiting[runs[i]] = runs[i + 1] end

local function lives(api)
  if api == '' then return true end -- placed by an older version, whose replicas have no lease
  if alive[api] == nil then
    alive[api] = redis.call('EXISTS', prefix .. 'api:' .. api) == 1
    if not alive[api] then missing[#missing + 1] = api end
  end
  return alive[api]
end

local sums = {} -- by rank, in the order of ENTRY
for rank = 0, ARGV[4] - 1 do sums[tostring(rank)] = {0, 0, 0, 0, 0, 0, 0} end
local held, kept = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #held, 2 do
  local run = held[i]
  local blocks, tokens, rank, aside, pulls, api = string.match(held[i + 1], '(%d+),(%d+),(%d+)(a?),?(%d*),?(.*)')
  local orphaned = not lives(api) and dead[api]
  if orphaned then redis.call('UNLINK', prefix .. 'request:' .. run) end
  if orphaned or redis.call('EXISTS', prefix .. 'request:' .. run) == 0 then
    redis.call('HDEL', KEYS[1], run)
    dropped[#dropped + 1] = run
  else
    kept[#kept + 1] = run
    live[run] = true
    local of = sums[rank]
    if of and aside == 'a' then
      of[6], of[7] = of[6] + 1, of[7] + blocks
    elseif of then
      of[1], of[2] = of[1] + 1, of[2] + blocks
      if waiting[run] then of[3], of[4], of[5] = of[3] + tokens, of[4] + 1, of[5] + (tonumber(pulls) or 0) end
    end
  end
end
for run in pairs(waiting) do
  if not live[run] then
    local hashes = redis.call('GET', prefix .. 'prefix:' .. run) or ''
    for _, key in ipairs(starting_keys(prefix .. 'starting:' .. ARGV[2] .. ':', hashes)) do
      redis.call('HDEL', key, run)
    end
    redis.call('HDEL', KEYS[3], run)
    redis.call('UNLINK', prefix .. 'prefix:' .. run)
  end
end
for rank, counted in pairs(sums) do
  local place = place_of(ARGV[3], rank)
  local before = sums_of(KEYS[2], place) or {0, 0, 0, 0, 0, 0, 0, 0}
  local changed = false
  for i = 1, 7 do changed = changed or before[i] ~= counted[i] end
  if changed then
    counted[8] = before[8]
    write_sums(KEYS[2], place, counted)
  end
  -- For API replicas of wire version 1, which read this.
  local old = {'requests', 'blocks', 'tokens', 'waiting', 'pulls', 'requests', 'blocks'}
  for i, what in ipairs(old) do
    local field = what .. '.' .. rank .. (i > 5 and 'a' or '')
    if counted[i] ~= 0 or redis.call('HEXISTS', KEYS[4], field) == 1 then redis.call('HSET', KEYS[4], field, counted[i]) end
  end
end
return {kept, missing, dropped}
