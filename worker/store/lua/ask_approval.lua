#!lua
-- prelude: fence
-- ask_approval: a person is asked whether a tool call of a completed call may run. Shown only after the answer.
--
-- KEYS 1 turn record; 2 journal; 3 outputs; 4 approvals; 5 due; 6 waiting; 7 log
-- ARGV 1..5 fence; 6 event id; 7 the fact (JSON); 8 what the ids of the turn's approvals begin with; 9 this one's name,
--      '<call>_<index>'; 10 tool; 11 keys of the options, between spaces; 12 attempt that completed the call; 13 ms
--      until the request expires; 14 the turn's member of due; 15 the request as an output (JSON, without its expiry)
-- Writes the fact, the output with its expiry, one log entry, and the request: under `<name>:` its tool, options,
-- attempt, expires (ms), lasts (ms from now to then) and asked (the id of the output); `pending` names those that
-- nobody has decided. The turn is due at the first expiry.
-- Replies OK seq | STATE 'open' while an attempt is open, 'asked' when this was asked before | the fence's. Refused at
-- maxmemory.
local turn, refusal = fence('ask_approval')
if not turn then
  return refusal
end
if turn.is_open then
  return {'STATE', 'open'}
end
local name = ARGV[9]
if redis.call('HEXISTS', KEYS[4], name .. ':options') == 1 then
  return {'STATE', 'asked'}
end
local expires = string.format('%.0f', turn.now + ARGV[13])
local pending = redis.call('HGET', KEYS[4], 'pending') or ''
redis.call('RPUSH', KEYS[2], ARGV[7])
emit(turn, KEYS[3], 'o', '{"expires_at_ms":' .. expires .. ',' .. string.sub(ARGV[15], 2))
local asked = string.format('%.0f-%.0f', turn.at, turn.seq)
redis.call('HSET', KEYS[4], 'v', 1, 'pending', pending .. ' ' .. name, name .. ':tool', ARGV[10], name .. ':options',
  ARGV[11], name .. ':attempt', ARGV[12], name .. ':expires', expires, name .. ':lasts', ARGV[13], name .. ':asked',
  asked)
redis.call('ZADD', KEYS[5], 'LT', expires, ARGV[14])
redis.call('ZADD', KEYS[6], expires, ARGV[8] .. name)
redis.call('XADD', KEYS[7], '*', 'v', 1, 'kind', 'approval', 'event', ARGV[6], 'turn', ARGV[2], 'call', ARGV[3],
  'approval', ARGV[8] .. name, 'out', asked)
return done(turn, {'OK', turn.seq})
