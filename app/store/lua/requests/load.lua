-- Prepended to the scripts that count what is reserved: one place's entry of `loads:<pool>`, see app/keys.py.
local ENTRY = '<i4i4i4i4i4i4i4d'

local function now_ms()
  local clock = redis.call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function place_of(worker, rank)
  return rank == '0' and worker or worker .. '.' .. rank
end

-- The entry's sums, as a list in the order of ENTRY:
-- requests, blocks, tokens, waiting, pulls, aside requests, their blocks, and when the first waiting prompt began.
-- nil: it has none.
local function sums_of(loads, place)
  local raw = redis.call('HGET', loads, place)
  return raw and {struct.unpack(ENTRY, raw)}
end

-- Sums of a place where an older version has released what it did not reserve may be below zero for a second.
local function write_sums(loads, place, sums)
  for i = 1, 7 do sums[i] = math.max(0, sums[i]) end
  redis.call('HSET', loads, place, struct.pack(ENTRY, unpack(sums)))
end

-- `rank`: '<rank>a' for an aside request, whose prompt counts nowhere. The changes of the sums follow it.
local function count(loads, worker, rank, requests, blocks, tokens, waiting, pulls)
  local aside = string.sub(rank, -1) == 'a'
  if aside and requests == 0 and blocks == 0 then return end
  local place = place_of(worker, aside and string.sub(rank, 1, -2) or rank)
  local sums = sums_of(loads, place)
  if not sums then
    if requests <= 0 then return end -- of a worker that is gone
    sums = {0, 0, 0, 0, 0, 0, 0, 0}
  end
  if aside then
    sums[6], sums[7] = sums[6] + requests, sums[7] + blocks
  else
    if tokens < 0 or (waiting > 0 and sums[3] == 0) then sums[8] = now_ms() end
    for i, change in ipairs({requests, blocks, tokens, waiting, pulls}) do sums[i] = sums[i] + change end
  end
  write_sums(loads, place, sums)
end
