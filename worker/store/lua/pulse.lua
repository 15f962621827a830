#!lua flags=allow-oom
-- pulse: a process is here. Where none was for a while, the server was away (stopped, restarted, cut off), or its clock
-- jumped; then nobody is taken over until living drivers have had the time to renew.
--
-- KEYS 1 pulse
-- ARGV 1 lifetime of a lease in ms
-- Writes when the last pulse was; after more than half a lease without one, a calm of a whole lease begins, and so it
-- does when the last pulse lies as far ahead, because the clock was put back. No calm reaches further ahead than a
-- whole lease: one that does was begun by another clock. Any number of processes may beat, as often as they like.
-- Replies calm 0|1
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local before = redis.call('HMGET', KEYS[1], 'at_ms', 'calm_ms')
local calm = math.min(tonumber(before[2] or 0), now + ARGV[1])
if before[1] and math.abs(now - before[1]) > ARGV[1] / 2 then
  calm = now + ARGV[1]
end
redis.call('HSET', KEYS[1], 'v', 1, 'at_ms', string.format('%.0f', now), 'calm_ms', string.format('%.0f', calm))
return {calm > now and 1 or 0}
