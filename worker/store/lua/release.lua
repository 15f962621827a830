#!lua flags=allow-oom
-- prelude: fence
-- release: the owner hands the turn over. Discards what is open in the same step; no crash is counted.
--
-- KEYS 1 turn record; 2 open text; 3 outputs; 4 log; 5 due
-- ARGV 1..5 fence; 6 event id; 7 the session's member of due; 8 '1' when the open attempt had streamed text; 9..
--      outputs of the discard (JSON), emitted only when an attempt is open
-- The nonce stays, so that a repeat gets its answer; the state says that nobody drives the turn.
-- Replies OK marker seq | STATE 'attempt' when another attempt is open | the fence's. Runs at maxmemory.
local turn, refusal = fence('release')
if not turn then
  return refusal
end
if turn.is_open and turn.open ~= turn.attempt then
  return {'STATE', 'attempt'}
end
if turn.is_open then
  redis.call('DEL', KEYS[2])
  redis.call('HINCRBY', KEYS[1], 'discards', 1)
  if ARGV[8] == '1' then
    redis.call('HSET', KEYS[1], 'streamed', 1)
  end
  emit_all(turn, KEYS[3], 9)
  redis.call('XADD', KEYS[4], '*', 'v', 1, 'kind', 'discard', 'event', ARGV[6], 'turn', ARGV[2], 'call', ARGV[3])
end
redis.call('ZADD', KEYS[5], turn.now, ARGV[7])
return done(turn, {'OK', turn.marker, turn.seq}, 'state', 'queued', 'lease_ms', 0, 'open', '', 'open_bytes', 0)
