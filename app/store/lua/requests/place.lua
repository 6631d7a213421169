-- Places one request on one worker, or on a prefill and a decode worker: completely or not at all.
--
-- KEYS  1 request:<run>, and for each worker, in the order of the stages:
--       worker:<id>  reservations:<worker>  loads:<pool>  prefilling:<worker>  starting:<pool>  its queue's list, or the
--       first once more where the broker is another server
--       and last, for a LoRA adapter: loras
-- ARGV  1 run  2 Job (msgpack)  3 the record's life, ms  4 the prompt's packed block hashes  5 the API replica that
--       awaits the request, and for each worker:
--       its id  rank ('<rank>a': aside, see app/keys.py)  blocks  prompt tokens to compute  blocks to pull
--       Celery message ('': Celery's chain brings it, or the broker is another server)
--       and last, for a LoRA adapter: its name  its version
-- returns 1; 0 and nothing written when a worker's lease has ended; -1 and nothing written when the adapter was swapped
-- or removed: what is asked for after a swap never meets the old weights, however late replicas and workers hear of it
-- Sent twice, the second does nothing while the record exists.
local NEWEST = 8 -- of the prompts that begin alike: with more of them, others are not found

-- Adds a waiting prompt to `starting:<pool>`.
local function start(key, run, place, prompt, life_ms)
  local hashes, lists = beginnings(prompt), {}
  if #hashes == 0 then return end
  local before = redis.call('HMGET', key, unpack(hashes))
  for i, hash in ipairs(hashes) do
    local runs, others = run .. '\n', 1
    for other in string.gmatch(before[i] or '', '[^\n]+') do
      if other ~= run and others < NEWEST then runs, others = runs .. other .. '\n', others + 1 end
    end
    lists[hash] = runs
  end
  lists[run] = place .. '\n' .. prompt
  write_runs(key, lists)
  if redis.call('PTTL', key) < tonumber(life_ms) then redis.call('PEXPIRE', key, life_ms) end
end

if redis.call('EXISTS', KEYS[1]) == 1 then
  return 1
end
local last = #KEYS - 5
for k = 2, last, 6 do
  if redis.call('EXISTS', KEYS[k]) == 0 then
    return 0
  end
end
if (#KEYS - 1) % 6 == 1 then
  local adapter = redis.call('HGET', KEYS[#KEYS], ARGV[#ARGV - 1])
  if not adapter or cmsgpack.unpack(adapter)[2] ~= tonumber(ARGV[#ARGV]) then
    return -1
  end
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
local first = string.sub(ARGV[4], 1, 8)
local arg = 6
for k = 2, last, 6 do
  local worker, rank, blocks, tokens, pulls, message = unpack(ARGV, arg, arg + 5)
  arg = arg + 6
  redis.call('HSET', KEYS[k + 1], ARGV[1], table.concat({blocks, tokens, rank, pulls, ARGV[5]}, ','))
  count(KEYS[k + 2], worker, rank, 1, tonumber(blocks), tonumber(tokens), 1, tonumber(pulls))
  redis.call('HSET', KEYS[k + 3], ARGV[1], first .. rank)
  if string.sub(rank, -1) ~= 'a' and pulls == '0' then -- what is pulled comes after what is asked for there now
    start(KEYS[k + 4], ARGV[1], place_of(worker, rank), ARGV[4], ARGV[3])
  end
  if message ~= '' then
    redis.call('LPUSH', KEYS[k + 5], message)
  end
end
return 1
