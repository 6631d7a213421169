-- Prepended, after write_runs.lua, to the scripts that remove waiting prompts.
local function stop(key, run)
  local waiting = redis.call('HGET', key, run)
  if not waiting then return end
  redis.call('HDEL', key, run)
  local hashes, lists = beginnings(string.sub(waiting, string.find(waiting, '\n', 1, true) + 1)), {}
  local before = redis.call('HMGET', key, unpack(hashes))
  for i, hash in ipairs(hashes) do
    local runs = before[i] or ''
    local from, to = string.find('\n' .. runs, '\n' .. run .. '\n', 1, true)
    if from then lists[hash] = string.sub(runs, 1, from - 1) .. string.sub(runs, to) end
  end
  write_runs(key, lists)
end
