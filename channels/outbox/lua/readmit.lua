#!lua flags=allow-oom
-- prelude: put
-- readmit: make deliveries of one entry of the log that was put aside, and take it from there, in one step. One that
-- has many is made in parts: it stays there until the last.
--
-- KEYS  1 the relay (hash), 2 the entries that were put aside (stream)
-- ARGV  1 the id of the entry among those; 2 whether more of it follows (1); how many contents, and of each its
--       key, JSON and lifetime (ms); how many deliveries, and each as in put, and anything but empty where it keeps the
--       entry as a dead letter
-- Gives {how many were new}, also when this very step was taken last; {0}: another took it, nothing was changed. A
-- delivery that exists already stays as it is. Runs at maxmemory, as insert.lua.

local place_aside, more_follow = take(), take()
local last = redis.call('HMGET', KEYS[1], 'readmitted', 'readmitted_count')
if last[1] == place_aside then
  return { tonumber(last[2]) }
end
local entry = redis.call('XRANGE', KEYS[2], place_aside, place_aside)[1]
if not entry then
  return { 0 }
end
take_each(function()
  redis.call('SET', take(), take(), 'PX', take())
end)
local made = 0
take_each(function()
  local one, is_letter = take_delivery(), take()
  if redis.call('EXISTS', record_of(one.id)) == 0 then
    put(one)
    if is_letter ~= '' then
      keep_entry(one, entry[2], 2)
    end
    made = made + 1
  end
end)
if more_follow ~= '1' then
  redis.call('XDEL', KEYS[2], place_aside)
  redis.call('HSET', KEYS[1], 'readmitted', place_aside, 'readmitted_count', made)
end
return done({ made })
