#!lua flags=allow-oom
-- store: store a bulk replay as it was decided, only if nobody changed it since it was read.
--
-- KEYS  1 the replay (hash), 2 those that run (set), 3 all of them (sorted set: id by when it was made)
-- ARGV  1 its id, 2 the version it was read with (0: there is none), 3 the version to store, 4 a mark of this very
--       step, 5 the nonce of the lease that it is stored under, or empty: by a person, 6 the record (JSON), 7 when it
--       was made (ms), 8 when it is forgotten (ms), or empty: never, 9 whether it runs: 1 or 0
-- Gives {1}, also when this very step was stored before; {0}: it was changed meanwhile, or the lease is another's by
-- now, and nothing is changed. Drops up to ten that have expired.

local replay = redis.call('HMGET', KEYS[1], 'version', 'mark', 'owner')
if replay[2] == ARGV[4] then
  return { 1 }
end
if (replay[1] or '0') ~= ARGV[2] or (ARGV[5] ~= '' and replay[3] ~= ARGV[5]) then
  return { 0 }
end
redis.call('HSET', KEYS[1], 'version', ARGV[3], 'mark', ARGV[4], 'record', ARGV[6])
redis.call('ZADD', KEYS[3], ARGV[7], ARGV[1])
redis.call(ARGV[9] == '1' and 'SADD' or 'SREM', KEYS[2], ARGV[1])
if ARGV[8] ~= '' then
  redis.call('PEXPIREAT', KEYS[1], ARGV[8])
end
for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, 9)) do
  if redis.call('EXISTS', (KEYS[1]:gsub('[^:]*$', '')) .. id) == 0 then
    redis.call('ZREM', KEYS[3], id)
    redis.call('SREM', KEYS[2], id)
  end
end
return { 1 }
