-- put: what a stored delivery and a lane consist of, for the scripts that store them. Not a script of its own.
--
-- KEYS  0: whose lane or mailbox a step touches is known only when it has looked, so names are made here; what lies
--       under them is told in channels/outbox/keys.py
-- A script reads its ARGV one after the other with `take`, and ends with `done`, which says for each lane it touched
-- when someone must look there.
--
-- A record is one line for scripts, then the delivery (JSON). The line: its mark (version:token, equal only while
-- nobody changed it); the mark that the last settle found, and the nonce of that; the ms at which to look at it; its
-- place in its mailbox; - for none.

local OF = 'lw:{dlv}:'
local LIVE = { queued = true, waiting = true, in_flight = true, held = true }

local at = 0
local function take()
  at = at + 1
  return ARGV[at]
end

-- As many as the next argument says, each as `what` takes it.
local function take_each(what)
  local all = {}
  for each = 1, tonumber(take()) do
    all[each] = what()
  end
  return all
end

local function partition(id)
  return 'lw:{p' .. id:sub(5, 6) .. '}:'
end

local function record_of(id)
  return partition(id) .. 'dlv:' .. id
end

local function more_of(id)
  return record_of(id) .. ':more'
end

-- A delivery as it is to be stored; `was` and `was_state`: its mark and state as it was read, empty when it is new.
local function take_delivery()
  return {
    was = take(), was_state = take(), id = take(), mark = take(), state = take(), lane = take(), mailbox = take(),
    due = take(), created = take(), dead = take(), forget = take(), record = take(),
  }
end

local function place(set, id, score)
  if score and score ~= '' then
    redis.call('ZADD', set, score, id)
  else
    redis.call('ZREM', set, id)
  end
end

local function stored(id)
  local value = redis.pcall('GET', record_of(id))
  if type(value) ~= 'string' then -- what is no string is no record
    return nil
  end
  local mark, settled, due, ordinal = value:match('^(%S+) (%S+) (%S+) (%S+)\n')
  return { mark = mark or '', settled = settled or '', due = due or '0', ordinal = ordinal, value = value }
end

local function count(state, lane, by)
  if LIVE[state] then
    for _, field in ipairs({ state, state .. ':' .. lane }) do
      if redis.call('HINCRBY', OF .. 'counts', field, by) <= 0 then
        redis.call('HDEL', OF .. 'counts', field)
      end
    end
  end
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Let the first of a mailbox be the one that is due. One in flight is first: its place has a minus. `id`: what was put.
-- What comes forth from behind another is looked at now: a clock that was put back since may have written its time.
local function lead(lane, box, id)
  local due = OF .. 'due:' .. lane
  local first = redis.call('ZRANGE', box, 0, 1, 'WITHSCORES')
  while first[1] do
    local one = stored(first[1])
    if first[3] then
      redis.call('ZREM', due, first[3])
    end
    -- A newer release may let one wait for something else than a time.
    if one and one.due:find('^%-?%d+$') and tonumber(first[2]) > 0 and not redis.call('ZSCORE', due, first[1]) then
      redis.call('ZADD', due, first[1] == id and one.due or math.min(one.due, now_ms()), first[1])
    end
    if one then
      return
    end
    redis.call('ZREM', box, first[1])
    first = redis.call('ZRANGE', box, 0, 1, 'WITHSCORES')
  end
end

local touched = {}

local function settle_in_lane(one, ordinal)
  local lane, flies = one.lane, one.state == 'in_flight'
  local waits = one.state == 'queued' or one.state == 'waiting'
  count(one.was_state, lane, -1)
  count(one.state, lane, 1)
  place(OF .. 'flight:' .. lane, one.id, flies and one.due)
  place(OF .. 'held:' .. lane, one.id, one.state == 'held' and one.created)
  place(OF .. 'due:' .. lane, one.id, one.mailbox == '' and waits and one.due)
  if one.mailbox ~= '' then
    local box = OF .. 'box:' .. lane .. ':' .. one.mailbox
    place(box, one.id, flies and -ordinal or waits and ordinal)
    lead(lane, box, one.id)
  end
  touched[lane] = true
end

-- Store a delivery.
-- `old`: what is stored of it, nil when it is new. `settled`: the mark that a settle found / its nonce.
local function put(one, old, settled)
  local ordinal = old and old.ordinal
  if not old then
    ordinal = redis.call('HINCRBY', OF .. 'counts', '#ordinal', 1)
    -- Those of one ms are listed in the order in which they were made, too.
    redis.call('ZADD', OF .. 'index', one.created .. string.format('.%03d', ordinal % 1000), one.id)
    ordinal = one.mailbox == '' and '-' or ordinal
  end
  local words = { one.mark, settled or old and old.settled or '-', one.due == '' and '-' or one.due, ordinal }
  redis.call('SET', record_of(one.id), table.concat(words, ' ') .. '\n' .. one.record)
  if one.forget == '' then
    redis.call('PERSIST', more_of(one.id))
  else
    redis.call('PEXPIREAT', record_of(one.id), one.forget)
    redis.call('PEXPIREAT', more_of(one.id), one.forget)
  end
  place(OF .. 'dead', one.id, one.dead)
  place(OF .. 'forget', one.id, one.forget)
  if one.lane ~= '' then
    settle_in_lane(one, ordinal)
  end
end

-- Let a dead letter keep the words of its log entry, without the first `left_out` of them.
local function keep_entry(one, words, left_out)
  for number = left_out + 1, #words do
    redis.call('HSET', more_of(one.id), 'entry:' .. number - left_out, words[number])
  end
  if one.forget ~= '' then
    redis.call('PEXPIREAT', more_of(one.id), one.forget)
  end
end

-- So long after its last step a lane is forgotten that lets everything through, and of which nothing is left.
local LANE_MS, CLOSED = 30 * 86400000, '1000000000'

-- Further ahead than this nothing is planned (FURTHEST_MS of channels/delivery/backoff.py).
local FURTHEST = 729360000

-- When someone must look at a lane: at the first end of a lease; and while fewer than its cap are in flight, when the
-- first is due, the lane is free, and those that were served before it had their turn. Where a clock was put back it is
-- now: at a lease that ends more than two leases ahead, at one that is due further ahead than anything is planned, and
-- a lane cannot have been served later than now.
local function look_again(lane, now)
  local key, flight, due = OF .. 'lane:' .. lane, OF .. 'flight:' .. lane, OF .. 'due:' .. lane
  local kept = redis.call('HMGET', key, 'cap', 'free', 'served', 'lease')
  local when = tonumber(redis.call('ZRANGE', flight, 0, 0, 'WITHSCORES')[2])
  if when and kept[4] and tonumber(redis.call('ZRANGE', flight, -1, -1, 'WITHSCORES')[2]) > now + 2 * kept[4] then
    when = math.min(when, now)
  end
  local first = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2])
  if first and (not kept[1] or redis.call('ZCARD', flight) < tonumber(kept[1])) then
    if tonumber(redis.call('ZRANGE', due, -1, -1, 'WITHSCORES')[2]) > now + FURTHEST then
      first = math.min(first, now)
    end
    first = math.max(first, tonumber(kept[2] or 0), math.min(tonumber(kept[3] or 0), now))
    when = when and math.min(when, first) or first
  end
  place(OF .. 'lanes', lane, when)
  if when or kept[1] == CLOSED or redis.call('EXISTS', OF .. 'held:' .. lane) == 1 then
    redis.call('PERSIST', key)
  else
    redis.call('PEXPIRE', key, LANE_MS)
  end
end

local function done(answer)
  local now = next(touched) and now_ms()
  for lane in pairs(touched) do
    look_again(lane, now)
  end
  return answer
end
