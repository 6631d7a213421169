-- Corrects a worker's reservations: drops those of requests that nobody awaits, and counts the sums anew.
--
-- KEYS  1 reservations:<worker>  2 loads:<pool>  3 prefilling:<worker>  4 load:<worker>  5 starting:<pool>,
--       and request:<run> of reserved runs
-- ARGV  1 worker  2 its data-parallel ranks, the reserved runs in the order of their keys, and after them dead API
--       replicas, whose requests nobody awaits
-- returns  {reserved runs, dropped runs}
-- Reservations that are not among these runs are newer than the question, and stay.
-- O(reservations). For reservations that were not released: after a lost message, the death of an API replica, or a
-- Redis that came back without its last second.
local waiting, live, dropped, record, dead = {}, {}, {}, {}, {}
for k = 6, #KEYS do record[ARGV[k - 3]] = KEYS[k] end
for i = #KEYS - 2, #ARGV do dead[ARGV[i]] = true end
local started = redis.call('HGETALL', KEYS[3])
for i = 1, #started, 2 do waiting[started[i]] = true end

local sums = {} -- by rank, in the order of ENTRY
for rank = 0, ARGV[2] - 1 do sums[tostring(rank)] = {0, 0, 0, 0, 0, 0, 0} end
local held, kept = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #held, 2 do
  local run = held[i]
  local blocks, tokens, rank, aside, pulls, api = string.match(held[i + 1], '(%d+),(%d+),(%d+)(a?),?(%d*),?(.*)')
  local orphaned = record[run] and dead[api]
  if orphaned then redis.call('UNLINK', record[run]) end
  if record[run] and redis.call('EXISTS', record[run]) == 0 then
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
    redis.call('HDEL', KEYS[3], run)
    stop(KEYS[5], run)
  end
end
for rank, counted in pairs(sums) do
  local place = place_of(ARGV[1], rank)
  local before, to = sums_of(KEYS[2], place)
  before = before or {0, 0, 0, 0, 0, 0, 0, 0}
  local changed = false
  for i = 1, 7 do changed = changed or before[i] ~= counted[i] end
  if changed then
    counted[8] = before[8]
    write_sums(KEYS[2], to, counted)
  end
  -- For API replicas of wire version 1, which read this.
  local old = {'requests', 'blocks', 'tokens', 'waiting', 'pulls', 'requests', 'blocks'}
  for i, what in ipairs(old) do
    local field = what .. '.' .. rank .. (i > 5 and 'a' or '')
    if counted[i] ~= 0 or redis.call('HEXISTS', KEYS[4], field) == 1 then redis.call('HSET', KEYS[4], field, counted[i]) end
  end
end
return {kept, dropped}
