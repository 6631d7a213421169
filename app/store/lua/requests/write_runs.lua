-- Prepended, after beginnings.lua, to the scripts that write to `starting:<pool>`.

-- Writes lists of runs to beginnings, or removes those that are empty; and a run with its prompt, if it is among them.
local function write_runs(key, lists)
  local set, gone = {}, {}
  for hash, runs in pairs(lists) do
    if runs == '' then gone[#gone + 1] = hash else set[#set + 1], set[#set + 2] = hash, runs end
  end
  if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
  if #set > 0 then redis.call('HSET', key, unpack(set)) end
end
