#!lua flags=allow-oom
-- prelude: decide
-- prelude: fence
-- expire: whatever of a turn's approval requests nobody has answered in time is decided as expired, with a notice.
--
-- KEYS 1..7 as decide
-- ARGV 1..6 as decide; 7 ms for which a request lasts at most, where it does not say for how long it does
-- Any number of sweepers may ask: a request that a person has answered, or another sweeper, is left alone. A turn that
-- has ended is due no more. A turn in which a newer version has written is left to that version. What expires later
-- than if it were asked now was asked by another clock (before it was put back, or before a failover): it lasts from
-- now on.
-- Replies how many requests still wait, and how many more names of such cannot be read and were left alone. Runs at
-- maxmemory: a turn that waits for a person must come to its end.
local turn = asked_turn()
if turn and turn.is_newer then
  return {#turn.pending, 0}
end
if not turn or turn.state == 'sealed' then
  redis.call('ZREM', KEYS[5], ARGV[3])
  return {0, 0}
end

local function put_right()
  local is_changed = false
  for _, name in ipairs(turn.pending) do
    local request = redis.call('HMGET', KEYS[2], name .. ':expires', name .. ':lasts')
    local latest = turn.now + (tonumber(request[2]) or ARGV[7])
    if tonumber(request[1]) > latest then
      local expires = string.format('%.0f', latest)
      redis.call('HSET', KEYS[2], name .. ':expires', expires)
      redis.call('ZADD', KEYS[6], expires, ARGV[2] .. name)
      is_changed = true
    end
  end
  return is_changed
end

if put_right() then
  make_due(turn)
end
expire_overdue(turn)
close(turn)
return {#turn.pending, #turn.unreadable}
