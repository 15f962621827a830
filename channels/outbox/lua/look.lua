#!lua flags=allow-oom
-- prelude: put
-- look: what a claim decides about: the lanes at which someone must look, and the first of each.
--
-- KEYS  0: as in put.lua
-- ARGV  1 the claim's token, 2 how many it wants
-- Gives {now (ms), 1} when that claim was made already; else {now, 0}, and of each lane its name, mark, record, cap,
-- free, how many are in flight, then those whose lease has ended and those that are due, as id, record, id, record ...
-- A time further ahead than anything is planned is of another clock, and of leases one that lies more than two ahead.
-- The lane that waits longest is first. What has no record any more is taken from its set.

local token, limit = take(), tonumber(take())
local now = now_ms()
if redis.call('EXISTS', OF .. 'claim:' .. token) == 1 then
  return { now, 1 }
end

-- What lies ahead by less than any wait may still have been written by a clock that was put back since: after that
-- someone must look at every lane once, and at what is due there in more than a minute: what was queued waits for half
-- a minute at most, and what waits rightly is let wait on. So many of these are moved in one look; while more may be
-- left, the next finds the clock put back, too. Written once a second, since an idle look is to write nothing.
local AT_ONCE, A_MINUTE = 5000, 60000

local function bring_near(lane, most)
  local due, far = OF .. 'due:' .. lane, '(' .. string.format('%.0f', now + A_MINUTE)
  local ahead = redis.call('ZRANGEBYSCORE', due, far, '+inf', 'LIMIT', 0, most)
  for _, id in ipairs(ahead) do
    redis.call('ZADD', due, string.format('%.0f', now), id)
  end
  return #ahead
end

local clock, left = tonumber(redis.call('GET', OF .. 'clock')), AT_ONCE
if clock and clock > now + 1000 then
  for _, lane in ipairs(redis.call('ZRANGEBYSCORE', OF .. 'lanes', '(' .. string.format('%.0f', now), '+inf')) do
    redis.call('ZADD', OF .. 'lanes', string.format('%.0f', now), lane)
  end
  if clock > now + A_MINUTE then
    for _, lane in ipairs(redis.call('ZRANGE', OF .. 'lanes', 0, -1)) do
      left = left - bring_near(lane, left)
    end
  end
end
if left > 0 and (not clock or math.abs(now - clock) > 1000) then
  redis.call('SET', OF .. 'clock', string.format('%.0f', now))
end

local function ripe(set, count, bound)
  local found = redis.call('ZRANGEBYSCORE', set, '-inf', now, 'LIMIT', 0, count)
  local ahead = '(' .. string.format('%.0f', now + bound)
  for _, each in ipairs(redis.call('ZRANGEBYSCORE', set, ahead, '+inf', 'LIMIT', 0, count)) do
    found[#found + 1] = each
  end
  return found
end

local function with_records(set, count, bound)
  local found = {}
  for _, id in ipairs(ripe(set, count, bound)) do
    local one = stored(id)
    if one then
      found[#found + 1] = id
      found[#found + 1] = one.value
    else
      redis.call('ZREM', set, id)
    end
  end
  return found
end

local found = { now, 0 }
local lanes = ripe(OF .. 'lanes', limit, FURTHEST)
local depth = math.min(limit, 2 * math.ceil(limit / math.max(#lanes, 1)))
for _, lane in ipairs(lanes) do
  local kept = redis.call('HMGET', OF .. 'lane:' .. lane, 'mark', 'record', 'cap', 'free', 'lease')
  local flight = OF .. 'flight:' .. lane
  local ended = with_records(flight, depth, kept[5] and 2 * kept[5] or FURTHEST)
  local due = with_records(OF .. 'due:' .. lane, depth, FURTHEST)
  found[#found + 1] = {
    lane, kept[1] or '', kept[2] or '', kept[3] or '', kept[4] or '', redis.call('ZCARD', flight), ended, due,
  }
end
return done(found)
