#!lua flags=allow-oom
-- prelude: put
-- insert: make deliveries of a stretch of the log, move the cursor over it, and drop what lies before it, in one step.
--
-- KEYS  1 the relay (hash), 2 the log (stream), 3 the entries that were put aside (stream)
-- ARGV  1 the relay's nonce, 2 the cursor that it read from, 3 the cursor to move to, 4 how many log entries are put
--       aside, and the id of each; how many contents, and of each its key, JSON and lifetime (ms); how many deliveries,
--       and each as in put, and the id of the log entry that it keeps as a dead letter, or empty
-- Gives {1, how many were new}, also when this very step was taken before; {0}: another relay owns the log or the
-- cursor stands elsewhere, nothing was changed. A delivery that exists already stays as it is. A cursor that is to move
-- nowhere stays: then these are some of the deliveries of the next entry, and how many were new is forgotten. The
-- entry at the cursor stays. The log is trimmed here, and nowhere else: a trim of its own could reach a server that has
-- lost this step since, and take from it what it has to tell again. Runs at maxmemory, for the same reason.

local nonce, start, goal = take(), take(), take()
local relay = redis.call('HMGET', KEYS[1], 'owner', 'cursor', 'inserted')
local cursor = relay[2] or '0-0'
if relay[1] ~= nonce then
  return { 0 }
end
if cursor == goal and goal ~= start then
  return { 1, tonumber(relay[3]) }
end
if cursor ~= start then
  return { 0 }
end
for _, place_in_log in ipairs(take_each(take)) do
  local entry = redis.call('XRANGE', KEYS[2], place_in_log, place_in_log)[1]
  if entry then
    redis.call('XADD', KEYS[3], '*', 'aside:place', place_in_log, unpack(entry[2]))
  end
end
take_each(function()
  redis.call('SET', take(), take(), 'PX', take())
end)
local inserted = 0
take_each(function()
  local one, place_in_log = take_delivery(), take()
  if redis.call('EXISTS', record_of(one.id)) == 0 then
    put(one)
    if place_in_log ~= '' then
      local entry = redis.call('XRANGE', KEYS[2], place_in_log, place_in_log)[1]
      keep_entry(one, entry and entry[2] or {}, 0)
    end
    inserted = inserted + 1
  end
end)
if goal ~= start then
  redis.call('HSET', KEYS[1], 'cursor', goal, 'inserted', inserted)
  redis.call('XTRIM', KEYS[2], 'MINID', '~', goal)
end
return done({ 1, inserted })
