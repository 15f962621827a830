#!lua flags=allow-oom
-- prelude: ended
-- prelude: fence
-- seal: the turn ends. Nothing of it changes any more, and the session goes on to its next turn.
--
-- KEYS 1 turn record; 2 text; 3 journal; 4 outputs; 5 queue; 6 history; 7 session record; 8 due; 9 live; 10 log;
--      11 approvals; 12 waiting; 13 the turns that ended so
-- ARGV 1..5 fence; 6 event id; 7 outcome; 8 reason or ''; 9 failure (JSON) or ''; 10 correlation id; 11 totals (JSON);
--      12 the session's member of due; 13 the turn's; 14 what the ids of its approvals begin with; 15 retention in
--      seconds; 16.. outputs (JSON, in order)
-- Takes the turn from the queue into the history (which keeps the last 1,000), emits the outputs and one log entry, and
-- lets the turn's keys expire after the retention. What a person was asked waits no more. The session is due now if another turn waits; else it is due no
-- more, and what it keeps expires with its last turn.
-- Replies OK marker seq | STATE 'open' while an attempt is open | the fence's. Runs at maxmemory.
local turn, refusal = fence('seal')
if not turn then
  return refusal
end
if turn.is_open then
  return {'STATE', 'open'}
end
emit_all(turn, KEYS[4], 16)
redis.call('XADD', KEYS[10], '*', 'v', 1, 'kind', 'seal', 'event', ARGV[6], 'turn', ARGV[2], 'call', ARGV[3],
  'outcome', ARGV[7])
redis.call('LREM', KEYS[5], 1, ARGV[2])
redis.call('RPUSH', KEYS[6], ARGV[2])
redis.call('LTRIM', KEYS[6], -1000, -1)
redis.call('ZREM', KEYS[9], ARGV[2])
list_ended(KEYS[13], ARGV[2], turn.now, ARGV[15])
redis.call('ZREM', KEYS[8], ARGV[13])
for name in string.gmatch(redis.call('HGET', KEYS[11], 'pending') or '', '%S+') do
  redis.call('ZREM', KEYS[12], ARGV[14] .. name)
end
local reply = done(turn, {'OK', turn.marker, turn.seq}, 'state', 'sealed', 'outcome', ARGV[7], 'reason', ARGV[8],
  'failure', ARGV[9], 'correlation_id', ARGV[10], 'totals', ARGV[11], 'sealed_ms', turn.now, 'lease_ms', 0)
for i = 1, 4 do
  redis.call('EXPIRE', KEYS[i], ARGV[15])
end
redis.call('EXPIRE', KEYS[11], ARGV[15])
if redis.call('EXISTS', KEYS[5]) == 1 then
  redis.call('ZADD', KEYS[8], turn.now, ARGV[12])
else
  redis.call('ZREM', KEYS[8], ARGV[12])
  redis.call('EXPIRE', KEYS[6], ARGV[15])
  redis.call('EXPIRE', KEYS[7], ARGV[15])
end
return reply
