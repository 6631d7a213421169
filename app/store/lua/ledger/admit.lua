-- Admits a request: charges it and its prompt to all its accounts, or to none. Repeated, it changes nothing.
--
-- ARGV     4 its deadline, ms since the epoch; '' if it was admitted by a process that has died: nothing is charged
--          5 "<deployment>api:", for the leases of API replicas; '' if a missing lease says nothing now
--          7 tokens  8 money: what its answer may cost at most, if an account has a budget, else ''
-- returns  {what the accounts have, {account and limit that refused it, …}}: none refused, it is admitted
--
-- Only what is known now is charged: the record charged:<request> says how much, for `settle.lua`, and how much is
-- reserved, by which API replica; and who settles it: the process that has admitted it last. It lives a day longer
-- than the request may run. The place among parallel requests and what is reserved belong to the API replica that makes
-- the answer: if they refuse a request, those of dead replicas are freed.
local accounts, refused, dead = accounts_read(), {}, {}
local charged, adopted = redis.call('EXISTS', KEYS[1]) == 1, ARGV[4] == ''
local api = string.match(ARGV[3], '^[^|]*')

local function is_dead(holder)
  if ARGV[5] == '' or holder == api then return false end
  if dead[holder] == nil then dead[holder] = redis.call('EXISTS', ARGV[5] .. holder) == 0 end
  return dead[holder]
end

local function reserved(a)
  local held, sum = redis.call('HGETALL', KEYS[a.key + 3]), 0
  for i = 1, #held, 2 do sum = sum + held[i + 1] end
  if a.spent + sum < a.most then return sum end
  for i = 1, #held, 2 do
    if is_dead(held[i]) then
      redis.call('HDEL', KEYS[a.key + 3], held[i])
      sum = sum - held[i + 1]
    end
  end
  return sum
end

if not charged and not adopted then
  for i, a in ipairs(accounts) do
    if a.most and a.spent >= a.most then
      refused[#refused + 1] = {i - 1, 'budget'}
    elseif a.most and a.spent + reserved(a) >= a.most then
      refused[#refused + 1] = {i - 1, 'reserved'}
    end
    for n, limit in ipairs(a.limits) do
      if limit > 0 and a.left[n] < math.max(1, limit * a.spared) then refused[#refused + 1] = {i - 1, rates[n]} end
    end
    if a.parallel > 0 and a.seats >= a.parallel then
      for _, seat in ipairs(redis.call('ZRANGE', KEYS[a.key + 2], 0, -1)) do
        if is_dead(string.match(seat, '^[^|]*')) then
          redis.call('ZREM', KEYS[a.key + 2], seat)
          a.seats = a.seats - 1
        end
      end
    end
    if a.parallel > 0 and a.seats >= a.parallel then refused[#refused + 1] = {i - 1, 'parallel'} end
  end
end
if #refused == 0 and (charged or not adopted) then
  if not charged then
    redis.call('HSET', KEYS[1], 'tokens', ARGV[1], 'money', ARGV[2], 'until', ARGV[4], 'by', api)
    if ARGV[7] ~= '' then redis.call('HSET', KEYS[1], 'more_tokens', ARGV[7], 'more_money', ARGV[8]) end
    redis.call('PEXPIREAT', KEYS[1], ARGV[4] + 86400000)
  else
    redis.call('HSET', KEYS[1], 'by', api)
  end
  local ends, more_tokens, more_money, holder =
    unpack(redis.call('HMGET', KEYS[1], 'until', 'more_tokens', 'more_money', 'holder'))
  ends = ends + 60000
  for _, a in ipairs(accounts) do
    if not charged then add(a, 1, tonumber(ARGV[1]), tonumber(ARGV[2])) end
    if a.parallel > 0 then
      a.seats = a.seats + redis.call('ZADD', KEYS[a.key + 2], ends, ARGV[3])
      redis.call('PEXPIREAT', KEYS[a.key + 2], ends, 'NX')
      redis.call('PEXPIREAT', KEYS[a.key + 2], ends, 'GT')
    end
  end
  if more_tokens and holder ~= api then
    if holder then reserve(accounts, holder, -1, more_tokens, more_money) end
    reserve(accounts, api, 1, more_tokens, more_money, ends)
    redis.call('HSET', KEYS[1], 'holder', api)
  end
end
return {told(accounts), refused}
