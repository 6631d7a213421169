-- Charges what a request has cost besides what it was charged before, or gives back what it didn't cost; and frees its
-- place among the parallel ones, and what it reserved. Repeated, or for a request that was not admitted, it changes nothing.
-- If another process has admitted it since, which will settle it, only the caller's place is freed.
--
-- ARGV     4 '1': it has ended, and is forgotten; '': another process may continue it, and settle it again
--          5 '1': it did not take place, and the rates of requests get it back, too
-- returns  as admit.lua has it: what the accounts have
local accounts = accounts_read()
local before = redis.call('HMGET', KEYS[1], 'tokens', 'money', 'more_tokens', 'more_money', 'holder', 'by')
if before[6] and before[6] ~= string.match(ARGV[3], '^[^|]*') then before = {} end
local requests, tokens, money = ARGV[5] == '1' and -1 or 0, tonumber(ARGV[1]), tonumber(ARGV[2])
for _, a in ipairs(accounts) do
  if before[1] then add(a, requests, tokens - before[1], money - before[2]) end
  if a.parallel > 0 then a.seats = a.seats - redis.call('ZREM', KEYS[a.key + 2], ARGV[3]) end
end
if before[5] then
  reserve(accounts, before[5], -1, before[3], before[4])
  redis.call('HDEL', KEYS[1], 'holder')
end
if before[1] and ARGV[4] == '1' then redis.call('UNLINK', KEYS[1]) end
if before[1] and ARGV[4] ~= '1' then redis.call('HSET', KEYS[1], 'tokens', ARGV[1], 'money', ARGV[2]) end
return {told(accounts), {}}
