#!lua
-- prelude: cancelling
-- prelude: ending
-- prelude: fence
-- submit: a message becomes a turn, durable before anyone is told. A turn id stands for one submit, however often it
-- is sent.
--
-- KEYS 1 turn record; 2 queue; 3 due; 4 live; 5 watch; 6 log; then the idempotency key and the quota, if there are any
-- ARGV 1 turn; 2 session; 3 the session's member of due; 4 ms to be watched from now on, or 0; 5 most entries the log
--      may hold; 6 fingerprint of the message; 7 seconds for which the key stands, 0: there is none; 8 what is done
--      where another turn of the session runs or waits: 'queue', 'reject' or 'interrupt'; 9 what the names of the
--      partition's keys begin with; 10 record version that the sender reads and writes; 11 who interrupts; 12 retention
--      in seconds; 13 the end of an interrupted turn, as an output (JSON); 14 the agent whose turns alone may be
--      interrupted, or '': of all; 15 most turns of the quota, 0: there is none; 16 the ms within which; 17.. fields
--      and values of the record
-- Writes the record (with created_ms), puts the turn at the queue's end, and makes the session due now unless it is due
-- anyway; what the session remembers does not expire while it waits. With 'interrupt' the turn at the head of the queue
-- is cancelled in the same step, as `cancel_turn` says, and what waits behind it keeps its place; one that a newer
-- version has written is left, and the message waits.
-- Replies NEW turn session interrupted, the last one '' where none was | SAME turn session: the key stands for this
-- message | CONFLICT turn: it stands for another one | SPENT ms: the quota takes the next one after those | BUSY turn:
-- with 'reject', the one at the head | BARRED turn: with 'interrupt', the one at the head is of another agent | FULL
-- entries: the relay is too far behind. Refused at maxmemory.
-- A repeat writes one field again, because a server counts only this connection's writes as what WAITAOF waits for.
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('HSET', KEYS[1], 'turn', ARGV[1])
  return {'NEW', ARGV[1], ARGV[2], redis.call('HGET', KEYS[1], 'interrupted') or ''}
end
local stands_s = tonumber(ARGV[7])
if stands_s > 0 then
  local known = redis.call('HMGET', KEYS[7], 'turn', 'session', 'fingerprint')
  if known[1] then
    redis.call('HSET', KEYS[7], 'turn', known[1])
    if known[3] ~= ARGV[6] then
      return {'CONFLICT', known[1]}
    end
    return {'SAME', known[1], known[2]}
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_ms = string.format('%.0f', now)
local most = tonumber(ARGV[15])
local quota = most > 0 and KEYS[#KEYS]
local before = quota and string.format('%.0f', now - ARGV[16])
if quota then
  -- What is later than now was taken before the clock was put back: it counts no more.
  local taken = redis.call('ZCOUNT', quota, '(' .. before, now_ms)
  if taken >= most then
    local goes = redis.call('ZRANGEBYSCORE', quota, '(' .. before, now_ms, 'WITHSCORES', 'LIMIT', taken - most, 1)
    return {'SPENT', string.format('%.0f', goes[2] + ARGV[16] - now)}
  end
end
local entries = redis.call('XLEN', KEYS[6])
if entries >= tonumber(ARGV[5]) then
  return {'FULL', entries}
end
local head = redis.call('LINDEX', KEYS[2], 0)
if head and ARGV[8] == 'reject' then
  return {'BUSY', head}
end
if head and ARGV[8] == 'interrupt' and ARGV[14] ~= ''
  and redis.call('HGET', ARGV[9] .. 'turn:' .. head, 'agent') ~= ARGV[14] then
  return {'BARRED', head}
end
local interrupted = ''
if head and ARGV[8] == 'interrupt' then
  local reply = cancel_turn(ARGV[9], head, 'interrupted', ARGV[11], ARGV[10], ARGV[12], ARGV[13])
  interrupted = (reply[1] == 'SEALED' or reply[1] == 'FLAGGED') and head or ''
end
redis.call('HSET', KEYS[1], 'turn', ARGV[1], 'session', ARGV[2], 'created_ms', now_ms, 'state', 'queued', 'nonce', '',
  'lease_ms', 0, 'epoch', 0, 'op', 0, 'reply', '', 'seq', 0, 'at', 0, 'marker', 0, 'open', '', 'open_bytes', 0,
  'call', 0, 'committed', 0, 'attempt', 0, 'calls', 0, 'resumes', 0, 'discards', 0, 'crashes', 0, 'streamed', 0,
  'interrupted', interrupted, unpack(ARGV, 17))
redis.call('RPUSH', KEYS[2], ARGV[1])
redis.call('PERSIST', ARGV[9] .. 'history:' .. ARGV[2])
redis.call('PERSIST', ARGV[9] .. 'session:' .. ARGV[2])
redis.call('ZADD', KEYS[3], 'NX', now_ms, ARGV[3])
redis.call('ZADD', KEYS[4], now_ms, ARGV[1])
if tonumber(ARGV[4]) > 0 then
  redis.call('ZADD', KEYS[5], string.format('%.0f', now + ARGV[4]), ARGV[1])
end
if quota then
  redis.call('ZREMRANGEBYSCORE', quota, '-inf', before)
  redis.call('ZREMRANGEBYSCORE', quota, '(' .. now_ms, '+inf')
  redis.call('ZADD', quota, now_ms, ARGV[1])
  redis.call('PEXPIRE', quota, ARGV[16])
end
if stands_s > 0 then
  redis.call('HSET', KEYS[7], 'v', 1, 'turn', ARGV[1], 'session', ARGV[2], 'fingerprint', ARGV[6])
  redis.call('EXPIRE', KEYS[7], ARGV[7])
end
return {'NEW', ARGV[1], ARGV[2], interrupted}
