#!lua
-- prelude: fence
-- tool_start: a tool call of a completed call is about to run. The tool may start only after the answer.
--
-- KEYS 1 turn record; 2 journal; 3 outputs
-- ARGV 1..5 fence; 6 the fact (JSON); 7.. outputs (JSON, in order)
-- Replies OK seq | STATE 'open' while an attempt is open | the fence's. Refused at maxmemory.
local turn, refusal = fence('tool_start')
if not turn then
  return refusal
end
if turn.is_open then
  return {'STATE', 'open'}
end
redis.call('RPUSH', KEYS[2], ARGV[6])
emit_all(turn, KEYS[3], 7)
return done(turn, {'OK', turn.seq})
