-- Counts what tenants got of a model's engines: see app/routing/tenant_service.py.
--
-- KEYS  1 service:<model>
-- ARGV  1 the key's life, ms  2 now, seconds since the epoch  3 the API replica's field  4 what it has of each tenant
--       5-7 the virtual times as it knows them
--       and for each changed account: its field  the least finish tag ('': any)  what is added  weight
redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
for class = 0, 2 do
  local field, time = 'v' .. class, tonumber(ARGV[5 + class])
  if time > tonumber(redis.call('HGET', KEYS[1], field) or '-1') then
    redis.call('HSET', KEYS[1], field, string.format('%.9f', time))
  end
end
for i = 8, #ARGV, 4 do
  local known = redis.call('HGET', KEYS[1], ARGV[i])
  local finish = known and tonumber(string.match(known, '^%S+')) or 0
  if ARGV[i + 1] ~= '' then finish = math.max(finish, tonumber(ARGV[i + 1])) end
  local told = string.format('%.9f %s %s', finish + tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[2])
  redis.call('HSET', KEYS[1], ARGV[i], told)
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
