#!lua flags=allow-oom
-- claim: become the driver of the turn at the head of a session's queue.
--
-- KEYS 1 queue; 2 due; 3 session record; 4 history; 5 watch; 6 pulse; 7 driven
-- ARGV 1 nonce; 2 lifetime of the lease in ms; 3 record version that the claimant reads and writes; 4 the session's
--      member of due; 5 what the names of the partition's keys begin with (which turn it is, only the queue knows);
--      6 crashes from which on a turn is a suspect; 7 '1' when the claimant runs this turn in a process of its own;
--      8 ms for which a claimant that does not, but can start one that does, reserves a suspect; 0: it cannot; 9 the
--      session; 10 ms beyond which no lease, calm or reservation reaches: one that does was written by another clock
--      (before it was put back, or before a failover) and is over
-- Refuses, with an empty list and no change of the turn, one that a living owner holds, and a turn or a session in
-- which a newer version has written. With an empty queue, or a turn that waits for a person, the session is due no
-- more. A vanished owner counts as a crash, one that released the turn or parked it does not; one that ran it as a
-- suspect counts as a crash of the suspect, too. An owner whose time is over has vanished only if living ones could
-- have renewed: not when the last pulse is half a lease away (as far ahead, too: the clock was put back), and not
-- before the calm is over that the next pulse began.
-- A suspect is refused to a claimant that would run it among others: SUSPECT, and nothing changes but the reservation
-- and, the first time, since when it waits: by that wait its deadline is put off when it is granted.
-- While another claimant has reserved it, the empty list. A turn that is cancelled is no suspect: it is only sealed.
-- A session that is refused for what its turn is, and not for who holds it, is none that is driven any more (KEYS 7):
-- it waits its time, as others do, and is not looked at before them again and again.
-- Writes nonce, epoch + 1, op 0, the lease, the version of what will be written, how it came (first | takeover |
-- resumed), whether it runs as a suspect; at the first claim the turn's deadline, which later ones only keep from lying
-- further ahead than at the first (the clock was put back); keeps what the session remembers from expiring while a turn
-- lives.
-- The same nonce again, while it holds the lease or nobody has taken it: the same grant, and a fresh lease.
-- Replies {} | {'SUSPECT', turn, crashes, reserved for this claimant 0|1} | {record (names and values), journal, text,
-- session record (names and values), watched 0|1, ms to the deadline, turn and message of all that the last call
-- carries}
local turn = redis.call('LINDEX', KEYS[1], 0)
if not turn then
  redis.call('ZREM', KEYS[2], ARGV[4])
  return {}
end
local record = ARGV[5] .. 'turn:' .. turn
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stored = redis.call('HMGET', record, 'v', 'state', 'nonce', 'lease_ms', 'crashes', 'deadline_ms',
  'turn_deadline_ms', 'suspect', 'suspect_crashes', 'reserved', 'reserved_ms', 'cancel', 'suspected_ms')
local function is_ahead(ms)
  return ms > now and ms <= now + ARGV[10]
end
local version = math.max(tonumber(stored[1]), tonumber(redis.call('HGET', KEYS[3], 'v') or 0))
if version > tonumber(ARGV[3]) then
  redis.call('ZREM', KEYS[7], ARGV[9])
  return {}
end
if stored[2] == 'parked' then
  redis.call('ZREM', KEYS[2], ARGV[4])
  return {}
end
local is_driven = stored[2] == 'running'
local is_mine = is_driven and stored[3] == ARGV[1]
if is_driven and not is_mine and is_ahead(tonumber(stored[4])) then
  return {}
end
local is_vanished = is_driven and not is_mine
if is_vanished then
  local pulse = redis.call('HMGET', KEYS[6], 'at_ms', 'calm_ms')
  local was_away = pulse[1] and math.abs(now - pulse[1]) > ARGV[2] / 2
  if was_away or is_ahead(tonumber(pulse[2] or 0)) then
    return {}
  end
end
local crashes = tonumber(stored[5]) + (is_vanished and 1 or 0)
local is_suspect = crashes >= tonumber(ARGV[6]) and (stored[12] or '') == ''
if is_suspect and not is_mine and ARGV[7] ~= '1' then
  redis.call('ZREM', KEYS[7], ARGV[9])
  local is_ours = stored[10] == ARGV[1]
  if not is_ours and is_ahead(tonumber(stored[11] or 0)) then
    return {}
  end
  if (stored[13] or '') == '' then
    redis.call('HSET', record, 'suspected_ms', string.format('%.0f', now))
  end
  local wait = tonumber(ARGV[8])
  if wait > 0 then
    local ends = string.format('%.0f', now + wait)
    redis.call('HSET', record, 'reserved', ARGV[1], 'reserved_ms', ends)
    redis.call('ZADD', KEYS[2], ends, ARGV[4])
  end
  return {'SUSPECT', turn, crashes, wait > 0 and 1 or 0}
end
local whole = tonumber(stored[7])
local deadline = tonumber(stored[6] or now + whole)
if not is_mine then
  deadline = deadline + math.max(0, now - (tonumber(stored[13]) or now))
  local came = is_vanished and 'takeover' or stored[3] ~= '' and 'resumed' or 'first'
  local suspect_crashes = tonumber(stored[9] or 0) + ((is_vanished and stored[8] == '1') and 1 or 0)
  redis.call('PERSIST', KEYS[4])
  local epoch = redis.call('HINCRBY', KEYS[3], 'epoch', 1)
  redis.call('HSET', record, 'v', ARGV[3], 'nonce', ARGV[1], 'state', 'running', 'epoch', epoch, 'op', 0, 'reply', '',
    'crashes', crashes, 'suspect_crashes', suspect_crashes, 'suspect', is_suspect and 1 or 0, 'came', came,
    'reserved_ms', 0, 'suspected_ms', '')
  redis.call('HSET', KEYS[3], 'v', ARGV[3])
  redis.call('PERSIST', KEYS[3])
end
local lease = string.format('%.0f', now + ARGV[2])
deadline = math.min(deadline, now + whole)
redis.call('HSET', record, 'lease_ms', lease, 'deadline_ms', string.format('%.0f', deadline))
redis.call('ZADD', KEYS[2], lease, ARGV[4])
redis.call('ZADD', KEYS[7], lease, ARGV[9])
local carried = {}
for id in string.gmatch(redis.call('HGET', record, 'carried') or '', '%S+') do
  carried[#carried + 1] = id
  carried[#carried + 1] = redis.call('HGET', record, 'carried:' .. id)
    or redis.call('HGET', ARGV[5] .. 'turn:' .. id, 'message') or ''
end
local watched_until = redis.call('ZSCORE', KEYS[5], turn)
return {
  redis.call('HGETALL', record),
  redis.call('LRANGE', ARGV[5] .. 'journal:' .. turn, 0, -1),
  redis.call('GET', ARGV[5] .. 'text:' .. turn) or '',
  redis.call('HGETALL', KEYS[3]),
  (watched_until and tonumber(watched_until) > now) and 1 or 0,
  string.format('%.0f', deadline - now),
  carried
}
