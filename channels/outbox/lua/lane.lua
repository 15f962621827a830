-- lane: a step of one lane, for the scripts that take one. Not a script of its own; stands behind put.
--
-- KEYS  0: as in put.lua
-- ARGV of a step: the lane's name; its mark, cap and free as they were read, empty for none; its mark and record as
-- they are to be, empty where it stays as it is; its cap and the ms at which it is free; the ms at which it was
-- served; how many may be in flight, or empty; its longest lease (ms), or empty; how many notices, and of each the log
-- it goes to and its words; how many that are looked at later, and when and which; how many deliveries, and each as in
-- put.

local function take_notice()
  return { log = take(), words = take_each(take) }
end

local function take_later()
  return { id = take(), at = take() }
end

local function take_lane()
  return {
    name = take(), was = take(), was_cap = take(), was_free = take(), mark = take(), record = take(), cap = take(),
    free = take(), served = take(), most = take(), lease = take(), notices = take_each(take_notice),
    later = take_each(take_later), deliveries = take_each(take_delivery),
  }
end

-- The lane as it is stored: mark, cap, free, record; empty for what is not there.
local function kept_of(name)
  local kept = redis.call('HMGET', OF .. 'lane:' .. name, 'mark', 'cap', 'free', 'record')
  return { mark = kept[1] or '', cap = kept[2] or '', free = kept[3] or '', record = kept[4] or '' }
end

local function keep(lane)
  local key = OF .. 'lane:' .. lane.name
  redis.call('HSET', key, 'cap', lane.cap, 'free', lane.free, 'served', lane.served)
  if lane.lease ~= '' then
    redis.call('HSET', key, 'lease', lane.lease)
  end
  if lane.cap == '' then
    redis.call('HDEL', key, 'cap', 'free')
  end
  if lane.mark ~= '' then
    redis.call('HSET', key, 'mark', lane.mark, 'record', lane.record)
  end
  for _, notice in ipairs(lane.notices) do
    redis.call('XADD', notice.log, '*', unpack(notice.words))
  end
  touched[lane.name] = true
end
