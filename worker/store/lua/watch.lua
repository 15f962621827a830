#!lua flags=allow-oom
-- watch: a reader goes on watching a turn.
--
-- KEYS 1 turn record; 2 watch
-- ARGV 1 turn; 2 ms for which the reader will watch
-- Replies watched 0|1: a turn that has ended, or is none, is watched no more.
local state = redis.call('HGET', KEYS[1], 'state')
if not state or state == 'sealed' then
  return {0}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[2], 'GT', string.format('%.0f', now + ARGV[2]), ARGV[1])
return {1}
