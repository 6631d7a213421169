-- Makes a worker's account true again: reservations whose request is gone are dropped, the sums counted anew.
--
-- KEYS  1 reservations:<worker>  2 load:<worker>  3 prefilling:<worker>      ARGV  1 the deployment's prefix
-- returns how many reservations were dropped
-- O(reservations). For what nobody released: a message that was lost, a Redis that came back without its last second.
local prefix, dropped, sums = ARGV[1], 0, {}
local waiting = {}
local runs = redis.call('HGETALL', KEYS[3])
for i = 1, #runs, 2 do waiting[runs[i]] = true end
local held = redis.call('HGETALL', KEYS[1])
local live = {}
for i = 1, #held, 2 do
  local run = held[i]
  if redis.call('EXISTS', prefix .. 'request:' .. run) == 0 then
    redis.call('HDEL', KEYS[1], run)
    dropped = dropped + 1
  else
    live[run] = true
    local blocks, tokens, rank, pulls = string.match(held[i + 1], '(%d+),(%d+),(%d+),?(%d*)')
    pulls = tonumber(pulls) or 0
    local function add(what, value) sums[what .. '.' .. rank] = (sums[what .. '.' .. rank] or 0) + value end
    add('requests', 1)
    add('blocks', blocks)
    add('tokens', waiting[run] and tokens or 0)
    add('pulls', waiting[run] and pulls or 0)
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
return dropped
