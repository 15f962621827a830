#!lua flags=allow-oom
-- reserve: others leave a suspect alone for longer, as the process that was started for it has not claimed it yet.
--
-- KEYS 1 queue; 2 due
-- ARGV 1 nonce of the claim that reserved it; 2 ms from now; 3 the session's member of due; 4 what the names of the
--      partition's keys begin with (which turn it is, only the queue knows)
-- Changes nothing unless the turn at the head of the queue is reserved by this nonce: its time may be over, but nobody
-- may have reserved or claimed the turn since, nor want it to end. Repeated, it reserves from now.
-- Replies {reserved 0|1}
local turn = redis.call('LINDEX', KEYS[1], 0)
if not turn then
  return {0}
end
local record = ARGV[4] .. 'turn:' .. turn
local stored = redis.call('HMGET', record, 'reserved', 'reserved_ms', 'cancel')
if stored[1] ~= ARGV[1] or tonumber(stored[2] or 0) == 0 or (stored[3] or '') ~= '' then
  return {0}
end
local time = redis.call('TIME')
local ends = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2])
redis.call('HSET', record, 'reserved_ms', ends)
redis.call('ZADD', KEYS[2], ends, ARGV[3])
return {1}
