-- Prepended to the scripts that count what is reserved: places' entries in `loads:<pool>`, see app/keys/keys.toml.
local ENTRY, ENTRY_BYTES = '<i4i4i4i4i4i4i4d', 36
local GROUPS = 128 -- all are read fastest if there are few fields, one is written fastest if they are short

local function now_ms()
  local clock = redis.call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function place_of(worker, rank)
  return rank == '0' and worker or worker .. '.' .. rank
end

-- The entry's sums, as a list in the order of ENTRY:
-- requests, blocks, tokens, waiting, pulls, aside requests, their blocks, and when the first waiting prompt began.
-- nil: it has none. And where to write them: the field, what it has before this entry, the entry's name, what is behind.
local function sums_of(loads, place)
  local group = (tonumber(string.sub(string.match(place, '^[^.]*'), -2), 16) or 0) % GROUPS
  local entries, at, name = redis.call('HGET', loads, group) or '', 1, string.char(#place) .. place
  while at <= #entries do
    local sums = at + 1 + string.byte(entries, at)
    local behind = sums + ENTRY_BYTES
    if string.sub(entries, at, sums - 1) == name then
      local found = {struct.unpack(ENTRY, string.sub(entries, sums, behind - 1))}
      return found, {group, string.sub(entries, 1, at - 1), name, string.sub(entries, behind)}
    end
    at = behind
  end
  return nil, {group, entries, name, ''}
end

-- `to`: as `sums_of` returns it.
local function remove_sums(loads, to)
  local others = to[2] .. to[4]
  if others == '' then redis.call('HDEL', loads, to[1]) else redis.call('HSET', loads, to[1], others) end
end

-- Sums of a place where an older version has released what it did not reserve may be below zero for a second.
local function write_sums(loads, to, sums)
  for i = 1, 7 do sums[i] = math.max(0, sums[i]) end
  redis.call('HSET', loads, to[1], to[2] .. to[3] .. struct.pack(ENTRY, unpack(sums)) .. to[4])
end

-- `rank`: '<rank>a' for an aside request, whose prompt counts nowhere. The changes of the sums follow it.
local function count(loads, worker, rank, requests, blocks, tokens, waiting, pulls)
  local aside = string.sub(rank, -1) == 'a'
  if aside and requests == 0 and blocks == 0 then return end
  local place = place_of(worker, aside and string.sub(rank, 1, -2) or rank)
  local sums, to = sums_of(loads, place)
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
  write_sums(loads, to, sums)
end
