#!lua flags=allow-oom
-- prelude: lane
-- prelude: put
-- settle: store deliveries as they were decided, each only if nobody changed it since it was read, and what that makes
-- of their lanes.
--
-- KEYS  0: as in put.lua
-- ARGV  1 a nonce of this step, 2 now (ms), 3 how many lanes, and each as in lane, 4 how many attempts showed
--       something, and of each the id, the number of the attempt, what it showed (JSON, or empty), and the number whose
--       place it takes, or empty
-- A lane changes only if it is as it was read, and only together with all of its deliveries. One that comes without any
-- is told of attempts that are stored already, or by people: it keeps the nonces of the last such steps, so that a step
-- whose answer was lost is known again also when others have changed the lane since.
-- Gives of each lane {1 if it is stored as given, else 0; of each delivery 1 if this step has stored it, its record if
-- another step did that decided of the same attempt, 0 if somebody else has changed it}. Repeated it changes nothing
-- and gives the same. Drops expired deliveries from the sets: more of them than one settle adds.

-- Many processes may tell one lane between a step and its repeat; each nonce is 8 characters and a space.
local NONCES = 50 * 9

local step, now = take(), take()
local is_new, settled = {}, 0

local function settle(lane)
  local verdicts, all_new = {}, true
  for place, one in ipairs(lane.deliveries) do
    local old, mine = stored(one.id), one.was .. '/' .. step
    if old and old.mark == one.was then
      put(one, old, mine)
      verdicts[place], is_new[one.id], settled = 1, true, settled + 1
    else
      all_new = false
      if old and old.settled == mine then
        verdicts[place] = 1
      else
        verdicts[place] = old and old.settled:match('^[^/]*') == one.was and old.value or 0
      end
    end
  end
  if lane.mark == '' then
    return { 0, verdicts }
  end
  local key, mark, nonces = OF .. 'lane:' .. lane.name, kept_of(lane.name).mark, ''
  if #lane.deliveries == 0 then
    nonces = redis.call('HGET', key, 'nonces') or ''
    if nonces:find(step, 1, true) then
      return { 1, verdicts }
    end
  end
  if mark ~= lane.mark and all_new and mark == lane.was then
    keep(lane)
    mark = lane.mark
    if #lane.deliveries == 0 then
      redis.call('HSET', key, 'nonces', (step .. ' ' .. nonces):sub(1, NONCES))
    end
  end
  return { mark == lane.mark and 1 or 0, verdicts }
end

local function take_shown()
  return { id = take(), number = take(), what = take(), instead = take() }
end

local answer = {}
for place, lane in ipairs(take_each(take_lane)) do
  answer[place] = settle(lane)
end
for _, shown in ipairs(take_each(take_shown)) do
  local more = more_of(shown.id)
  if is_new[shown.id] then
    if shown.what ~= '' then
      redis.call('HSET', more, 'evidence:' .. shown.number, shown.what)
    end
    if shown.instead ~= '' then
      redis.call('HDEL', more, 'evidence:' .. shown.instead)
    end
    local left = redis.call('PTTL', record_of(shown.id))
    if left > 0 then
      redis.call('PEXPIRE', more, left)
    end
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', OF .. 'forget', '-inf', now, 'LIMIT', 0, settled + 10)) do
  redis.call('ZREM', OF .. 'dead', id)
  redis.call('ZREM', OF .. 'forget', id)
  redis.call('ZREM', OF .. 'index', id)
end
return done(answer)
