#!lua flags=allow-oom
-- prelude: put
-- readmit: make deliveries of one entry of the log that was put aside, and take it from there, in one step.
--
-- KEYS  1 to 4 as in put.lua, 5 the relay (hash), 6 the entries that were put aside (stream), then the record of each
--       delivery
-- ARGV  1 the id of the entry among those; then for each delivery the seven of put.lua, and anything but empty where it
--       keeps the entry as a dead letter
-- Gives {how many were new}, also when this very step was taken last; {0}: another took it, nothing was changed. A
-- delivery that exists already stays as it is. Runs at maxmemory, as insert.lua.

local last = redis.call('HMGET', KEYS[5], 'readmitted', 'readmitted_count')
if last[1] == ARGV[1] then
  return { tonumber(last[2]) }
end
local entry = redis.call('XRANGE', KEYS[6], ARGV[1], ARGV[1])[1]
if not entry then
  return { 0 }
end
local made = 0
for each = 7, #KEYS do
  local at = 2 + (each - 7) * (FIELDS + 1)
  if redis.call('EXISTS', KEYS[each]) == 0 then
    put(KEYS[each], at)
    redis.call('ZADD', KEYS[4], redis.call('HINCRBY', KEYS[5], 'ordinal', 1), ARGV[at])
    if ARGV[at + FIELDS] ~= '' then
      keep(KEYS[each], entry[2], 2)
    end
    made = made + 1
  end
end
redis.call('XDEL', KEYS[6], ARGV[1])
redis.call('HSET', KEYS[5], 'readmitted', ARGV[1], 'readmitted_count', made)
return { made }
