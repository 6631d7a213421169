-- Admits a request: charges it and its prompt to all its accounts, or to none. Repeated, it changes nothing.
--
-- ARGV     4 its deadline, ms since the epoch; '' if it was admitted by a process that has died: nothing is charged
--          5 "<deployment>api:", for the leases of API replicas; '' if a missing lease says nothing now
-- returns  {what the accounts have, {account and limit that refused it, …}}: none refused, it is admitted
--
-- Only what is known now is charged: the record charged:<request> says how much, for `settle.lua`. It lives a day longer
-- than the request may run. The place among parallel requests belongs to the API replica that makes the answer: when
-- all are taken, those of dead replicas are freed.
local accounts, refused, dead = {}, {}, {}
for i = 1, (#KEYS - 1) / 3 do accounts[i] = read(i - 1) end
local charged, adopted = redis.call('EXISTS', KEYS[1]) == 1, ARGV[4] == ''
local api = string.match(ARGV[3], '^[^|]*')

if not charged and not adopted then
  for i, a in ipairs(accounts) do
    if a.most and a.spent >= a.most then refused[#refused + 1] = {i - 1, 'budget'} end
    for n, limit in ipairs(a.limits) do
      if limit > 0 and a.left[n] < math.max(1, limit * a.spared) then refused[#refused + 1] = {i - 1, rates[n]} end
    end
    if a.parallel > 0 and a.seats >= a.parallel and ARGV[5] ~= '' then
      for _, seat in ipairs(redis.call('ZRANGE', KEYS[a.key + 2], 0, -1)) do
        local holder = string.match(seat, '^[^|]*')
        if dead[holder] == nil then dead[holder] = holder ~= api and redis.call('EXISTS', ARGV[5] .. holder) == 0 end
        if dead[holder] then
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
    redis.call('HSET', KEYS[1], 'tokens', ARGV[1], 'money', ARGV[2], 'until', ARGV[4])
    redis.call('PEXPIREAT', KEYS[1], ARGV[4] + 86400000)
  end
  local ends = tonumber(redis.call('HGET', KEYS[1], 'until')) + 60000
  for _, a in ipairs(accounts) do
    if not charged then add(a, 1, tonumber(ARGV[1]), tonumber(ARGV[2])) end
    if a.parallel > 0 then
      a.seats = a.seats + redis.call('ZADD', KEYS[a.key + 2], ends, ARGV[3])
      redis.call('PEXPIREAT', KEYS[a.key + 2], ends, 'NX')
      redis.call('PEXPIREAT', KEYS[a.key + 2], ends, 'GT')
    end
  end
end
return {told(accounts), refused}
