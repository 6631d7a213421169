-- Takes parts of a batch to send: the next ones, and those whose worker or message is lost.
--
-- KEYS  1 batch:<id>  2 todo:<batch>  3 taken:<batch>
-- ARGV  1 how many of the next ones  2 the prefix of workers' leases  3 ms after which a message is lost that no worker
--       has taken  4 ms after which a part is lost whose worker hasn't renewed its claim
-- When the batch is paused or not in progress, lost parts go back to `todo`.
-- returns  part, ticket, part, ticket, …   Sent twice, the first call's parts count as lost, and are sent later.
local status, paused = unpack(redis.call('HMGET', KEYS[1], 'status', 'paused'))
local goes_on = status == 'in_progress' and paused ~= '1'
local out = {}
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function send(part)
  local ticket = redis.call('HINCRBY', KEYS[1], 'ticket', 1)
  redis.call('HSET', KEYS[3], part, ticket .. '||' .. now)
  out[#out + 1], out[#out + 2] = part, ticket
end
local taken = redis.call('HGETALL', KEYS[3])
for i = 1, #taken, 2 do
  local worker, since = string.match(taken[i + 1], '^%d+|(.*)|(%d+)$')
  local lost
  if not string.match(taken[i], '^%d+$') then redis.call('HDEL', KEYS[3], taken[i]) -- no part: a hand wrote it
  elseif not since then lost = true
  elseif worker == '' then lost = not goes_on or now - since > tonumber(ARGV[3])
  else lost = now - since > tonumber(ARGV[4]) or redis.call('EXISTS', ARGV[2] .. worker) == 0 end
  if lost and goes_on then
    send(taken[i])
  elseif lost then
    redis.call('HDEL', KEYS[3], taken[i])
    redis.call('ZADD', KEYS[2], taken[i], taken[i])
  end
end
if goes_on and tonumber(ARGV[1]) > 0 then
  local next = redis.call('ZPOPMIN', KEYS[2], ARGV[1])
  for i = 1, #next, 2 do send(next[i]) end
end
return out
