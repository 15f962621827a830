#!lua
-- prelude: fence
-- stage: deltas of the open attempt, for those who watch. Only a view: a commit does not need it.
--
-- KEYS 1 turn record; 2 open text; 3 outputs
-- ARGV 1..5 fence; 6 bytes of open text that the sender knows to be stored; then pairs of kind and piece:
--      'd' text, appended to the open text; 'h' thinking, which is not
-- Each piece becomes one output with the field '<kind><call>.<attempt>', the smallest form there is.
-- Replies OK open-bytes seq | STATE 'attempt' when that attempt is not the open one, 'offset' when the piece does not
-- continue what is stored | the fence's. Refused at maxmemory.
local turn, refusal = fence('stage')
if not turn then
  return refusal
end
if turn.open ~= turn.attempt then
  return {'STATE', 'attempt'}
end
if turn.open_bytes ~= tonumber(ARGV[6]) then
  return {'STATE', 'offset'}
end
for i = 7, #ARGV, 2 do
  if ARGV[i] == 'd' then
    turn.open_bytes = redis.call('APPEND', KEYS[2], ARGV[i + 1])
  end
  emit(turn, KEYS[3], ARGV[i] .. turn.attempt, ARGV[i + 1])
end
return done(turn, {'OK', turn.open_bytes, turn.seq}, 'open_bytes', turn.open_bytes)
