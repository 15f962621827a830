#!lua flags=allow-oom
-- take: take or renew the relay's lease on a partition's log.
--
-- KEYS  1 the relay (hash: cursor, owner, exp, inserted, ordinal)
-- ARGV  1 the nonce of who takes it, 2 for how long (ms); 0 gives it up; 3 ms beyond which no lease reaches: one that
--       does was written by another clock (before it was put back, or before a failover) and is over
-- Gives {1, cursor, now (ms)}, or {0} while another holds it. An ended lease that nobody took is renewed by its nonce.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local relay = redis.call('HMGET', KEYS[1], 'owner', 'exp', 'cursor')
local ends = tonumber(relay[2] or 0)
if relay[1] and relay[1] ~= ARGV[1] and ends > now and ends <= now + ARGV[3] then
  return { 0 }
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'exp', string.format('%.0f', now + ARGV[2]))
return { 1, relay[3] or '0-0', now }
