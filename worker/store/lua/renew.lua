#!lua flags=allow-oom
-- renew: the leases of one process in one partition live on.
--
-- KEYS 1 due; 2 watch; 3 driven; 4.. turn records
-- ARGV 1 lifetime of a lease in ms; 2 what a session's member of due begins with; 3.. the nonce for each record
-- A lease is renewed while its nonce stands in the record and the turn is driven, expired or not. Readers whose time
-- is over are forgotten.
-- Replies, for each record in order: held 0|1, watched 0|1
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lease = string.format('%.0f', now + ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
local reply = {}
for i = 4, #KEYS do
  local stored = redis.call('HMGET', KEYS[i], 'nonce', 'state', 'session', 'turn')
  local held = stored[1] == ARGV[i - 1] and stored[2] == 'running'
  if held then
    redis.call('HSET', KEYS[i], 'lease_ms', lease)
    redis.call('ZADD', KEYS[1], lease, ARGV[2] .. stored[3])
    redis.call('ZADD', KEYS[3], lease, stored[3])
  end
  reply[#reply + 1] = held and 1 or 0
  reply[#reply + 1] = (held and redis.call('ZSCORE', KEYS[2], stored[4])) and 1 or 0
end
return reply
