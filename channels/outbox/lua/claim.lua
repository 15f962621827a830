#!lua flags=allow-oom
-- prelude: lane
-- prelude: put
-- claim: store what a claim has decided about some lanes, each only if nobody changed meanwhile what that rests on.
--
-- KEYS  0: as in put.lua
-- ARGV  1 the claim's token, 2 how long its memo is kept (ms), 3 how many lanes, and each as in lane
-- A lane that changes is left alone when it, or one of its deliveries, was changed since it was read; one that stays as
-- it is, when its cap or its free moment was. No more are put in flight than the lane lets through.
-- Gives the records that the claim holds, as they are stored. Repeated it changes nothing and gives the same.
-- Runs at maxmemory: it overwrites in place, and what it lets through frees memory in the end.

local token, keep_ms = take(), take()
local memo = OF .. 'claim:' .. token

local function is_as_read(lane, old)
  local kept = kept_of(lane.name)
  if lane.mark == '' then
    return kept.cap == lane.was_cap and kept.free == lane.was_free
  end
  for place, one in ipairs(lane.deliveries) do
    if not old[place] or old[place].mark ~= one.was then
      return false
    end
  end
  return kept.mark == lane.was
end

local function claim(lane)
  local old = {}
  for place, one in ipairs(lane.deliveries) do
    old[place] = stored(one.id) or false
  end
  if not is_as_read(lane, old) then
    return
  end
  local flight, most = OF .. 'flight:' .. lane.name, tonumber(lane.most)
  if redis.call('ZCARD', flight) > 0 then
    lane.lease = math.max(lane.lease, tonumber(redis.call('HGET', OF .. 'lane:' .. lane.name, 'lease') or 0))
  end
  for place, one in ipairs(lane.deliveries) do
    local begins = one.state == 'in_flight' and one.was_state ~= 'in_flight'
    local fits = not begins or redis.call('ZCARD', flight) < most
    if fits and old[place] and old[place].mark == one.was then
      put(one, old[place])
      if begins then
        redis.call('RPUSH', memo, one.id)
      end
    end
  end
  for _, one in ipairs(lane.later) do
    redis.call('ZADD', OF .. 'due:' .. lane.name, 'XX', one.at, one.id)
    redis.call('ZADD', flight, 'XX', one.at, one.id)
  end
  keep(lane)
end

if redis.call('EXISTS', memo) == 0 then
  for _, lane in ipairs(take_each(take_lane)) do
    claim(lane)
  end
end
-- Also when repeated: a server waits for its disk only on behalf of a connection that has written.
redis.call('PEXPIRE', memo, keep_ms)
local held = {}
for _, id in ipairs(redis.call('LRANGE', memo, 0, -1)) do
  held[#held + 1] = redis.call('GET', record_of(id))
end
return done(held)
