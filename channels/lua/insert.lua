#!lua flags=allow-oom
-- prelude: put
-- insert: make deliveries of a stretch of the log, move the cursor over it, and drop what lies before it, in one step.
--
-- KEYS  1 to 4 as in put.lua, 5 the relay (hash), 6 the log (stream), 7 the entries that were put aside (stream), then
--       the record of each delivery, in log order
-- ARGV  1 the relay's nonce, 2 the cursor that it read from, 3 the cursor to move to, 4 how many log entries are put
--       aside, and the id of each; then for each delivery the seven of put.lua, and the id of the log entry that it
--       keeps as a dead letter, or empty
-- Gives {1, how many were new}, also when this very step was taken before; {0}: another relay owns the log or the
-- cursor stands elsewhere, nothing was changed. A delivery that exists already stays as it is. The entry at the cursor
-- stays. The log is trimmed here, and nowhere else: a trim of its own could reach a server that has lost this step
-- since, and take from it what it has to tell again. Runs at maxmemory, for the same reason.

local relay = redis.call('HMGET', KEYS[5], 'owner', 'cursor', 'inserted')
if relay[1] ~= ARGV[1] then
  return { 0 }
end
local cursor = relay[2] or '0-0'
if cursor == ARGV[3] then
  return { 1, tonumber(relay[3]) }
end
if cursor ~= ARGV[2] then
  return { 0 }
end
local aside = tonumber(ARGV[4])
for each = 5, 4 + aside do
  local entry = redis.call('XRANGE', KEYS[6], ARGV[each], ARGV[each])[1]
  if entry then
    redis.call('XADD', KEYS[7], '*', 'aside:place', ARGV[each], unpack(entry[2]))
  end
end
local inserted = 0
for each = 8, #KEYS do
  local at = 5 + aside + (each - 8) * (FIELDS + 1)
  local id, place_in_log = ARGV[at], ARGV[at + FIELDS]
  if redis.call('EXISTS', KEYS[each]) == 0 then
    put(KEYS[each], at)
    redis.call('ZADD', KEYS[4], redis.call('HINCRBY', KEYS[5], 'ordinal', 1), id)
    if place_in_log ~= '' then
      local entry = redis.call('XRANGE', KEYS[6], place_in_log, place_in_log)[1]
      keep(KEYS[each], entry and entry[2] or {}, 0)
    end
    inserted = inserted + 1
  end
end
redis.call('HSET', KEYS[5], 'cursor', ARGV[3], 'inserted', inserted)
redis.call('XTRIM', KEYS[6], 'MINID', '~', ARGV[3])
return { 1, inserted }
