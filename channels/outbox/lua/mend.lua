#!lua flags=allow-oom
-- prelude: put
-- mend: put deliveries that have not ended, and stand nowhere, back into their places, and look at their lanes again.
--
-- KEYS  0: as in put.lua
-- ARGV  1 how many that are not stored any more, and their ids; 2 how many deliveries, and each as in put, unchanged;
--       3 how far in index the search has come
-- Gives {how many were ever put back}. One that was changed since it was read is left alone.

for _, id in ipairs(take_each(take)) do
  if redis.call('EXISTS', record_of(id)) == 0 then
    for _, set in ipairs({ 'index', 'dead', 'forget' }) do
      redis.call('ZREM', OF .. set, id)
    end
  end
end

local PLACES = { queued = 'due:', waiting = 'due:', in_flight = 'flight:', held = 'held:' }

local function stands(one)
  local set = PLACES[one.state] .. one.lane
  if one.mailbox == '' or one.state == 'held' then
    return redis.call('ZSCORE', OF .. set, one.id)
  end
  local box = OF .. 'box:' .. one.lane .. ':' .. one.mailbox
  local is_first = redis.call('ZRANGE', box, 0, 0)[1] == one.id
  return redis.call('ZSCORE', box, one.id) and (not is_first or redis.call('ZSCORE', OF .. set, one.id))
end

-- Those whose record is gone would block a mailbox for ever.
local function unblock(one)
  if one.mailbox ~= '' and one.state ~= 'held' then
    lead(one.lane, OF .. 'box:' .. one.lane .. ':' .. one.mailbox)
  end
end

local mended = 0
for _, one in ipairs(take_each(take_delivery)) do
  local old = stored(one.id)
  if old and old.mark == one.was then
    touched[one.lane] = true
    unblock(one)
    if not stands(one) then
      put(one, old)
      mended = mended + 1
    end
  end
end
if mended > 0 then
  redis.call('HINCRBY', OF .. 'counts', '#mended', mended)
end
redis.call('SET', OF .. 'walk', take())
return done({ tonumber(redis.call('HGET', OF .. 'counts', '#mended') or 0) })
