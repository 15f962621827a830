#!lua flags=allow-oom
-- prelude: fence
-- commit: the open attempt completed its call. Its whole text is written at the marker, whatever was staged; from this
-- step on journal, text, usage and log know the call, and before it none of them did.
--
-- KEYS 1 turn record; 2 text; 3 open text; 4 journal; 5 outputs; 6 session record; 7 log
-- ARGV 1..5 fence; 6 event id; 7 marker that the sender knows; 8 the call's text; 9 the fact (JSON, refers to the text
--      by offset and length); 10 totals (JSON); 11 input tokens of the call or ''; 12.. outputs (JSON, in order; a
--      boundary text refers to the text too)
-- Writes text and marker (UTF-8 bytes), the fact, the totals, the outputs, one log entry; deletes the open text.
-- Replies OK marker seq | STATE 'attempt' when that attempt is not the open one, 'marker' when the sender's is not
-- ours | the fence's. Runs at maxmemory: what a model has answered is not lost for want of room.
local turn, refusal = fence('commit')
if not turn then
  return refusal
end
if turn.open ~= turn.attempt then
  return {'STATE', 'attempt'}
end
if turn.marker ~= tonumber(ARGV[7]) then
  return {'STATE', 'marker'}
end
redis.call('DEL', KEYS[3])
if ARGV[8] ~= '' then
  turn.marker = redis.call('SETRANGE', KEYS[2], turn.marker, ARGV[8])
end
redis.call('RPUSH', KEYS[4], ARGV[9])
if ARGV[11] ~= '' then
  redis.call('HSET', KEYS[6], 'last_input_tokens', ARGV[11])
end
emit_all(turn, KEYS[5], 12)
redis.call('XADD', KEYS[7], '*', 'v', 1, 'kind', 'commit', 'event', ARGV[6], 'turn', ARGV[2], 'call', ARGV[3])
return done(turn, {'OK', turn.marker, turn.seq}, 'open', '', 'open_bytes', 0, 'marker', turn.marker, 'totals', ARGV[10])
