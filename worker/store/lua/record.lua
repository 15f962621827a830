#!lua flags=allow-oom
-- prelude: fence
-- record: something happened between two calls: a tool has its result, or the conversation was made shorter.
--
-- KEYS 1 turn record; 2 journal; 3 outputs
-- ARGV 1..5 fence; 6 the fact (JSON); 7.. outputs (JSON, in order)
-- Replies OK seq | STATE 'open' while an attempt is open | the fence's. Runs at maxmemory: what a tool has done is not
-- forgotten for want of room.
local turn, refusal = fence('record')
if not turn then
  return refusal
end
if turn.is_open then
  return {'STATE', 'open'}
end
redis.call('RPUSH', KEYS[2], ARGV[6])
emit_all(turn, KEYS[3], 7)
return done(turn, {'OK', turn.seq})
