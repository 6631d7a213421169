-- Members of a sorted set behind one of them, all as of one time: others come and go between two pages, and two commands.
--
-- KEYS     1 the set
-- ARGV     1 'REV': from the highest score on, else ''  2 members at most
--          3 … behind the first of these that is there; without any from the beginning
-- returns  the members; nil: none of those is there
local rank, at = ARGV[1] == 'REV' and 'ZREVRANK' or 'ZRANK', 0
if #ARGV > 2 then
  local place
  for i = 3, #ARGV do place = place or redis.call(rank, KEYS[1], ARGV[i]) end
  if not place then return nil end
  at = place + 1
end
local last = at + ARGV[2] - 1
if ARGV[1] == 'REV' then return redis.call('ZRANGE', KEYS[1], at, last, 'REV') end
return redis.call('ZRANGE', KEYS[1], at, last)
