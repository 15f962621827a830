#!lua flags=allow-oom
-- prelude: ending
-- prelude: fence
-- seal: the turn ends. Nothing of it changes any more, and the session goes on to its next turn.
--
-- KEYS 1 turn record; 2 outputs
-- ARGV 1..5 fence; 6 event id; 7 what the names of the partition's keys begin with; 8 session; 9 outcome; 10 reason or
--      ''; 11 failure (JSON) or ''; 12 correlation id; 13 totals (JSON); 14 retention in seconds; 15.. outputs (JSON,
--      in order)
-- Emits the outputs, and does what `end_turn` says.
-- Replies OK marker seq | STATE 'open' while an attempt is open | the fence's. Runs at maxmemory.
local turn, refusal = fence('seal')
if not turn then
  return refusal
end
if turn.is_open then
  return {'STATE', 'open'}
end
turn.id, turn.session = ARGV[2], ARGV[8]
emit_all(turn, KEYS[2], 15)
end_turn(turn, ARGV[7], ARGV[9], ARGV[6], ARGV[3], ARGV[14])
return done(turn, {'OK', turn.marker, turn.seq}, 'state', 'sealed', 'outcome', ARGV[9], 'reason', ARGV[10],
  'failure', ARGV[11], 'correlation_id', ARGV[12], 'totals', ARGV[13], 'sealed_ms', turn.now, 'lease_ms', 0)
