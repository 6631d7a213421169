-- Prepended to the scripts that charge a request to its accounts: its key's, and its tenant's.
--
-- KEYS     1 charged:<request>; then for each account: spent:<rates>, budget:<account>, running:<account>, and if it has a
--          budget budget:<account>:reserved, or budget:<account>:reserved:money
-- ARGV     1 tokens  2 money: of the request, so far  3 its place among those that run, "<api>|<request>"
--          4 and 5: of the script
--          6 for each account, with spaces between: 1 requests a minute  2 tokens a minute (0: no limit, here and below)
--          3 least share of both that has to be left  4 parallel requests  5 budget (-1: none)  6 its unit and period,
--          "money/month"  7 when that period began  8 when it ends, ms since the epoch
--
-- A bucket of a minute's rates fills evenly. It may go below zero, since an answer's length is known only at its end: the
-- next requests wait until it is filled, so the limit holds over time. A full bucket needs no record, so the hash lives
-- until both are full. A budget admits while any of it is left that running requests don't reserve: as much as their
-- answers may cost at most. So it is exceeded by one answer at most. Its record is of one period, and gone after that.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local rates, given, next_key = {'requests', 'tokens'}, {}, 2
for word in string.gmatch(ARGV[6], '%S+') do given[#given + 1] = word end

local function exact(number)
  return string.format('%.17g', number)
end

-- What account i (from 0) has: read in order.
local function read(i)
  local key, arg = next_key, 8 * i
  local a = {key = key, limits = {}, left = {0, 0}, spent = 0, seats = 0} -- key: the number of its first one
  for n = 1, 2 do a.limits[n] = tonumber(given[arg + n]) end
  a.spared, a.parallel, a.most = tonumber(given[arg + 3]), tonumber(given[arg + 4]), tonumber(given[arg + 5])
  a.kind, a.from, a.ends = given[arg + 6], tonumber(given[arg + 7]), tonumber(given[arg + 8])
  if a.most < 0 then a.most = nil end
  next_key = key + (a.most and 4 or 3)
  if a.limits[1] > 0 or a.limits[2] > 0 then
    local record = redis.call('HMGET', KEYS[key], 'requests', 'tokens', 'at')
    local passed = math.max(0, now - (tonumber(record[3]) or now)) -- a replica's clock may be behind after a failover
    for n, limit in ipairs(a.limits) do
      a.left[n] = math.min(limit, (tonumber(record[n]) or limit) + passed * limit / 60000)
    end
  end
  if a.most then
    local record = redis.call('HMGET', KEYS[key + 1], 'kind', 'from', 'spent')
    local from = tonumber(record[2])
    a.replaced = record[1] and record[1] ~= a.kind
    if record[1] == a.kind and from >= a.from then -- later: another process knows of the next period already
      a.from, a.spent, a.known = from, tonumber(record[3]), true
    end
  end
  if a.parallel > 0 then
    redis.call('ZREMRANGEBYSCORE', KEYS[key + 2], '-inf', now)
    a.seats = redis.call('ZCARD', KEYS[key + 2])
  end
  return a
end

local function accounts_read()
  local accounts = {}
  for i = 1, #given / 8 do accounts[i] = read(i - 1) end
  return accounts
end

-- In the unit of the account's budget.
local function in_unit(a, tokens, money) return string.sub(a.kind, 1, 5) == 'money' and money or tokens end

-- Adds to what requests of an API replica reserve of the budgets; a negative number if they have ended. `ends`: when.
local function reserve(accounts, api, sign, tokens, money, ends)
  for _, a in ipairs(accounts) do
    local cost = a.most and sign * in_unit(a, tokens or 0, money or 0) or 0
    if cost > 0 then
      redis.call('HINCRBYFLOAT', KEYS[a.key + 3], api, exact(cost))
      redis.call('PEXPIREAT', KEYS[a.key + 3], ends, 'NX')
      redis.call('PEXPIREAT', KEYS[a.key + 3], ends, 'GT')
    elseif cost < 0 and redis.call('HEXISTS', KEYS[a.key + 3], api) == 1 then
      local left = redis.call('HINCRBYFLOAT', KEYS[a.key + 3], api, exact(cost))
      if tonumber(left) < 1e-9 then redis.call('HDEL', KEYS[a.key + 3], api) end
    end
  end
end

local function add(a, requests, tokens, money)
  local more, full_in = {requests, tokens}, 0
  if a.limits[1] > 0 or a.limits[2] > 0 then
    for n, limit in ipairs(a.limits) do
      if limit > 0 then
        a.left[n] = math.min(limit, a.left[n] - more[n]) -- what is given back may have been filled meanwhile
        full_in = math.max(full_in, (limit - a.left[n]) * 60000 / limit)
        redis.call('HSET', KEYS[a.key], rates[n], exact(a.left[n]))
      end
    end
    redis.call('HSET', KEYS[a.key], 'at', now)
    redis.call('PEXPIRE', KEYS[a.key], math.ceil(full_in) + 1)
  end
  if a.most and not (a.replaced and requests < 1) then -- else it was admitted within a budget of another kind
    a.spent = math.max(0, a.spent + in_unit(a, tokens, money)) -- what is given back may have been spent in the last period
    redis.call('HSET', KEYS[a.key + 1], 'kind', a.kind, 'from', exact(a.from), 'spent', exact(a.spent))
    if not a.known then redis.call('PEXPIREAT', KEYS[a.key + 1], exact(a.ends)) end
  end
end

-- For the process that asks, as text.
local function told(accounts)
  local out = {}
  for i, a in ipairs(accounts) do
    out[i] = {exact(a.left[1]), exact(a.left[2]), tostring(a.seats), exact(a.spent)}
  end
  return out
end
