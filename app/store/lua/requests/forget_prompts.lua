-- Removes prompts that wait on a worker that has gone.
--
-- KEYS  1 starting:<pool>     ARGV  runs
for _, run in ipairs(ARGV) do stop(KEYS[1], run) end
