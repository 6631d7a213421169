-- Makes a group of workers that wait, if all of them still do. Returns whether it did.
-- KEYS: gathering:<pool>, then group:<worker> of each member.
-- ARGV: the group; how long that is kept, ms; then the members.
for i = 2, #KEYS do
  if not redis.call('ZSCORE', KEYS[1], ARGV[i + 1]) then return 0 end
end
for i = 2, #KEYS do
  redis.call('ZREM', KEYS[1], ARGV[i + 1])
  redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2])
end
return 1
