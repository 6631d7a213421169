-- One of the workers that encode a request's pictures has done so: the last of them sends the next task.
--
-- KEYS  1 encoded:<run>  2 request:<run>  3 worker:<id> of the next task  4… its queue, and that of a task that begins
--       with it; none where the broker is another server
-- ARGV  1 the worker that has encoded  2 how many there are  3… the message for each of those queues
-- returns 1 for the last one, 0 for others, -1 when nobody awaits the request, -2 when the next worker is gone
-- Sent twice, the second sends no message.
local left_ms = redis.call('PTTL', KEYS[2])
if left_ms < 0 then
  return -1
end
local new = redis.call('SADD', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], left_ms)
if redis.call('SCARD', KEYS[1]) < tonumber(ARGV[2]) then
  return 0
end
if redis.call('EXISTS', KEYS[3]) == 0 then
  return -2
end
if new == 1 then
  for n = 4, #KEYS do
    redis.call('LPUSH', KEYS[n], ARGV[n - 1])
  end
end
return 1
