#!lua flags=allow-oom
-- prelude: decide
-- prelude: fence
-- expire: whatever of a turn's approval requests nobody has answered in time is decided as expired, with a notice.
--
-- KEYS 1..7 as decide
-- ARGV 1..6 as decide
-- Any number of sweepers may ask: a request that a person has answered, or another sweeper, is left alone. A turn that
-- has ended is due no more. A turn in which a newer version has written is left to that version.
-- Replies how many requests still wait, and how many more names of such cannot be read and were left alone. Runs at maxmemory: a turn that waits for a person must come to its end.
local turn = asked_turn()
if turn and turn.is_newer then
  return {#turn.pending, 0}
end
if not turn or turn.state == 'sealed' then
  redis.call('ZREM', KEYS[5], ARGV[3])
  return {0, 0}
end
expire_overdue(turn)
close(turn)
return {#turn.pending, #turn.unreadable}
