-- Writes a line's result. It counts once, however often it was computed and sent.
--
-- KEYS  1 batch:<id>  2 taken:<batch>  3 done:<batch>:<part>  4 batch-totals
-- ARGV  1 part  2 ticket  3 worker  4 line  5 Result (msgpack)  6 'completed' or 'failed'
--       7, 8, 9 tokens: of the prompt, of it cached, of the answer
-- returns 1; 0 when another worker has the part by now
local ticket, worker = string.match(redis.call('HGET', KEYS[2], ARGV[1]) or '', '^(%d+)|(.*)|')
if ticket ~= ARGV[2] or worker ~= ARGV[3] then return 0 end
if redis.call('HSETNX', KEYS[3], ARGV[4], ARGV[5]) == 1 then
  for field, count in pairs({[ARGV[6]] = 1, prompt = ARGV[7], cached = ARGV[8], completion = ARGV[9]}) do
    redis.call('HINCRBY', KEYS[1], field, count)
    redis.pcall('HINCRBY', KEYS[4], field, count) -- one that is no number, a hand's, is left as it is
  end
end
return 1
