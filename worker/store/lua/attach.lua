#!lua flags=allow-oom
-- attach: a reader joins a turn: all that was said so far, and the place from which to read on, of one moment.
--
-- KEYS 1 turn record; 2 text; 3 open text; 4 watch
-- ARGV 1 turn; 2 ms for which the reader will watch, or 0
-- Puts the turn among the watched ones until then at least, unless it has ended.
-- Replies {} when there is no such turn | {session, state, outcome or '', epoch, marker, open attempt
-- '<call>.<attempt>' or '', ms of the last output, seq of the last output, committed text, open text, record version}
local stored = redis.call('HMGET', KEYS[1], 'session', 'state', 'outcome', 'epoch', 'marker', 'open', 'at', 'seq')
if not stored[1] then
  return {}
end
if stored[2] ~= 'sealed' and tonumber(ARGV[2]) > 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('ZADD', KEYS[4], 'GT', string.format('%.0f', now + ARGV[2]), ARGV[1])
end
stored[3] = stored[3] or ''
stored[9] = redis.call('GET', KEYS[2]) or ''
stored[10] = redis.call('GET', KEYS[3]) or ''
stored[11] = redis.call('HGET', KEYS[1], 'v') or '1'
return stored
