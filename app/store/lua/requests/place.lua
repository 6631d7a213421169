-- Places one request on one worker, or on a prefill and a decode worker: completely or not at all.
--
-- KEYS  1 request:<run>  2 prefix:<run>, and for each worker, in the order of the stages:
--       worker:<id>  reservations:<worker>  loads:<pool>  prefilling:<worker>  its queue's list
--       and last, for a LoRA adapter: loras
-- ARGV  1 run  2 Job (msgpack)  3 the record's life, ms  4 the prompt's packed block hashes  5 the API replica that
--       awaits the request, and for each worker:
--       its id  how the keys starting:<pool>:… begin  rank ('<rank>a': aside, see app/keys.py)  blocks
--       prompt tokens to compute  blocks to pull  Celery message ('': Celery's chain brings it, or
--       the broker is another server)
--       and last, for a LoRA adapter: its name  its version
-- returns 1; 0 and nothing written when a worker's lease has ended; -1 and nothing written when the adapter was swapped
-- or removed: what is asked for after a swap never meets the old weights, however late replicas and workers hear of it
-- Sent twice, the second does nothing while the record exists.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 1
end
local last = #KEYS - 4
for k = 3, last, 5 do
  if redis.call('EXISTS', KEYS[k]) == 0 then
    return 0
  end
end
if (#KEYS - 2) % 5 == 1 then
  local adapter = redis.call('HGET', KEYS[#KEYS], ARGV[#ARGV - 1])
  if not adapter or cmsgpack.unpack(adapter)[2] ~= tonumber(ARGV[#ARGV]) then
    return -1
  end
end

-- Adds the run to a key `starting:<pool>:<hash>`; and removes from it one that waits no more, if it meets one: who
-- released that run knew neither its prompt nor this key.
local function start(key, place)
  redis.call('HSET', key, ARGV[1], place)
  if redis.call('PTTL', key) < tonumber(ARGV[3]) then redis.call('PEXPIRE', key, ARGV[3]) end
  local other = redis.call('HRANDFIELD', key)
  if redis.call('EXISTS', string.sub(KEYS[2], 1, -#ARGV[1] - 1) .. other) == 0 then redis.call('HDEL', key, other) end
end

redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
if ARGV[4] ~= '' then
  redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[3])
end
local first = string.sub(ARGV[4], 1, 8)
local arg = 6
for k = 3, last, 5 do
  local worker, begin, rank, blocks, tokens, pulls, message = unpack(ARGV, arg, arg + 6)
  arg = arg + 7
  redis.call('HSET', KEYS[k + 1], ARGV[1], table.concat({blocks, tokens, rank, pulls, ARGV[5]}, ','))
  count(KEYS[k + 2], worker, rank, 1, tonumber(blocks), tonumber(tokens), 1, tonumber(pulls))
  redis.call('HSET', KEYS[k + 3], ARGV[1], first .. rank)
  if string.sub(rank, -1) ~= 'a' then
    for _, key in ipairs(starting_keys(begin, ARGV[4])) do start(key, place_of(worker, rank)) end
  end
  if message ~= '' then
    redis.call('LPUSH', KEYS[k + 4], message)
  end
end
return 1
