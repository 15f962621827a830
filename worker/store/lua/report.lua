#!lua flags=allow-oom
-- report: a process tells that it lives, what it does, and its figures.
--
-- KEYS 1 the process (hash); 2 all processes (sorted set)
-- ARGV 1 id of the process; 2 ms for which it is taken to live from now on; 3 record (JSON); 4 figures
-- Writes what is told over what was told before, `seen` (now) and, once, `since`; drops from the set who is gone.
-- Sent again, it says the same later.
-- Replies {now (ms)}. Runs at maxmemory: that is when someone looks.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_ms = string.format('%.0f', now)
redis.call('HSETNX', KEYS[1], 'since', now_ms)
redis.call('HSET', KEYS[1], 'v', 1, 'seen', now_ms, 'record', ARGV[3], 'figures', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[2], string.format('%.0f', now + ARGV[2]), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms)
return {now_ms}
