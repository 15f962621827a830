#!lua flags=allow-oom
-- prelude: fence
-- discard: the open attempt is dead; what it staged is void. Costs nothing of what is committed.
--
-- KEYS 1 turn record; 2 open text; 3 outputs; 4 log
-- ARGV 1..5 fence; 6 event id; 7 totals (JSON); 8 resumes of this call with the one that follows, or '' when
--      none does; 9 '1' when content had streamed, in this attempt or in the one that it resumed; 10 the provider that
--      it died of, or ''; 11.. outputs (JSON, in order)
-- Deletes the open text, counts the discard, stores the totals, the resumes unless '' (whoever takes the turn over in
-- the wait before a resume must know that it is spent, and whom to ask next) and whether content had streamed, emits
-- the outputs and one log entry, whether anything was staged or not. When no attempt is open, there is nothing to
-- discard and nothing but the op number changes.
-- Replies OK marker seq | STATE 'attempt' when another attempt is open | the fence's. Runs at maxmemory.
local turn, refusal = fence('discard')
if not turn then
  return refusal
end
if not turn.is_open then
  return done(turn, {'OK', turn.marker, turn.seq})
end
if turn.open ~= turn.attempt then
  return {'STATE', 'attempt'}
end
redis.call('DEL', KEYS[2])
redis.call('HINCRBY', KEYS[1], 'discards', 1)
if ARGV[8] ~= '' then
  redis.call('HSET', KEYS[1], 'resumes', ARGV[8])
end
emit_all(turn, KEYS[3], 11)
redis.call('XADD', KEYS[4], '*', 'v', 1, 'kind', 'discard', 'event', ARGV[6], 'turn', ARGV[2], 'call', ARGV[3])
return done(turn, {'OK', turn.marker, turn.seq}, 'open', '', 'open_bytes', 0, 'totals', ARGV[7],
  'streamed', ARGV[9], 'died', ARGV[10])
