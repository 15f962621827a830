#!lua flags=allow-oom
-- prelude: fence
-- park: nothing is left to do until a person decides. Lease and slot are given back; no crash is counted.
--
-- KEYS 1 turn record; 2 approvals; 3 due
-- ARGV 1..5 fence; 6 how many decisions the sender knows; 7 the session's member of due
-- Where more was decided than that, nothing is parked and the rest is told. Else the turn is parked: the session is not
-- due, only the expiry of what was asked is, and the turn's deadline stands still until someone decides.
-- Replies OK decisions, then the facts (JSON without spaces) that the sender does not know; none: it is parked | STATE
-- 'open' while an attempt is open, 'nothing' when no question waits | the fence's. Runs at maxmemory.
local turn, refusal = fence('park')
if not turn then
  return refusal
end
if turn.is_open then
  return {'STATE', 'open'}
end
local stored = redis.call('HMGET', KEYS[2], 'decisions', 'pending')
local decisions = tonumber(stored[1] or 0)
local reply = {'OK', decisions}
for number = ARGV[6] + 1, decisions do
  reply[#reply + 1] = redis.call('HGET', KEYS[2], 'decision:' .. number)
end
if #reply > 2 then
  return done(turn, reply)
end
if not string.find(stored[2] or '', '%S') then
  return {'STATE', 'nothing'}
end
redis.call('ZREM', KEYS[3], ARGV[7])
return done(turn, reply, 'state', 'parked', 'parked_ms', turn.now, 'lease_ms', 0)
