#!lua flags=allow-oom
-- watch: a reader goes on watching a turn.
--
-- KEYS 1 turn record; 2 watch
-- ARGV 1 turn; 2 ms for which the reader will watch, or 0: it only asks
-- Replies watched 0|1: a turn that has ended, or is none, is watched no more. Then, if there is such a turn: ms of its
-- last output, seq of its last output.
local stored = redis.call('HMGET', KEYS[1], 'state', 'at', 'seq')
if not stored[1] then
  return {0}
end
if stored[1] == 'sealed' then
  return {0, stored[2], stored[3]}
end
if tonumber(ARGV[2]) > 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('ZADD', KEYS[2], 'GT', string.format('%.0f', now + ARGV[2]), ARGV[1])
end
return {1, stored[2], stored[3]}
