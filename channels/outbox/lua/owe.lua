#!lua flags=allow-oom
-- owe: keep whether what a lane holds is to be sent by whoever resumes it.
--
-- KEYS  1 the lane (hash)
-- ARGV  1 '1' or '0'
-- Gives {1}. Repeated it gives the same.

if ARGV[1] == '1' then
  redis.call('HSET', KEYS[1], 'owed', 1)
  if redis.call('HLEN', KEYS[1]) == 1 then -- beside no lane it must not stay for ever
    redis.call('PEXPIRE', KEYS[1], 30 * 86400000)
  end
else
  redis.call('HDEL', KEYS[1], 'owed')
end
return { 1 }
