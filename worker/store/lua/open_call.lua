#!lua
-- prelude: fence
-- open_call: an attempt of a call is about to be sent. Stored before the request leaves, so that no takeover starts
-- the counters afresh.
--
-- KEYS 1 turn record; 2 queue
-- ARGV 1..5 fence; 6 resumes of this call so far; 7 '1' when this is the call's first attempt; 8 the provider's name;
--      9 '1' when it goes on where content had come; 10.. the turns whose messages a first attempt carries, in order
-- Writes the record: call, attempt, open = '<call>.<attempt>', open_bytes, resumes, calls, provider, streamed; nobody
-- has died of this attempt yet. A first attempt writes what the call carries, in `carried` and the messages under
-- `carried:<turn>` (a turn that is cancelled meanwhile may be gone when the attempt is repeated), further ones leave
-- it.
-- Replies OK seq | INBOX when the turns to be carried do not stand directly behind this one in the queue, in that order
-- | STATE 'open' while another attempt is open, 'order' when the attempt does not come after the last one | the
-- fence's. Refused at maxmemory.
local turn, refusal = fence('open_call')
if not turn then
  return refusal
end
if turn.is_open then
  return {'STATE', 'open'}
end
local last = redis.call('HMGET', KEYS[1], 'call', 'attempt', 'calls')
local call, attempt = tonumber(ARGV[3]), tonumber(ARGV[4])
local is_new = ARGV[7] == '1'
local is_next_call = is_new and call > tonumber(last[1])
local is_next_attempt = not is_new and call == tonumber(last[1]) and attempt > tonumber(last[2])
if not is_next_call and not is_next_attempt then
  return {'STATE', 'order'}
end
for i = 10, #ARGV do
  if redis.call('LINDEX', KEYS[2], i - 9) ~= ARGV[i] then
    return {'INBOX'}
  end
end
if is_new then
  for id in string.gmatch(redis.call('HGET', KEYS[1], 'carried') or '', '%S+') do
    redis.call('HDEL', KEYS[1], 'carried:' .. id)
  end
  local records = string.sub(KEYS[1], 1, #KEYS[1] - #ARGV[2])
  for i = 10, #ARGV do
    redis.call('HSET', KEYS[1], 'carried:' .. ARGV[i], redis.call('HGET', records .. ARGV[i], 'message'))
  end
  redis.call('HSET', KEYS[1], 'carried', table.concat(ARGV, ' ', 10))
end
return done(turn, {'OK', turn.seq}, 'call', ARGV[3], 'attempt', ARGV[4], 'open', turn.attempt, 'open_bytes', 0,
  'resumes', ARGV[6], 'calls', tonumber(last[3]) + (is_new and 1 or 0), 'provider', ARGV[8], 'died', '',
  'streamed', ARGV[9])
