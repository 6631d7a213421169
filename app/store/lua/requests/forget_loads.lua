-- Removes places' entries, of workers that are gone.
--
-- KEYS  1 loads:<pool>     ARGV  places
for _, place in ipairs(ARGV) do
  local sums, to = sums_of(KEYS[1], place)
  if sums then remove_sums(KEYS[1], to) end
end
