#!lua flags=allow-oom
-- take: take or renew the lease on a bulk replay.
--
-- KEYS  1 the replay (hash: version, mark, record, owner, exp)
-- ARGV  1 the nonce of who takes it, 2 for how long (ms); 0 gives it up; 3 ms beyond which no lease reaches: one that
--       does was written by another clock and is over
-- Gives {1, record, now (ms)}, or {0} while another holds it or there is none.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local replay = redis.call('HMGET', KEYS[1], 'owner', 'exp', 'record')
local ends = tonumber(replay[2] or 0)
if not replay[3] or (replay[1] and replay[1] ~= ARGV[1] and ends > now and ends <= now + ARGV[3]) then
  return { 0 }
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'exp', string.format('%.0f', now + ARGV[2]))
return { 1, replay[3], now }
