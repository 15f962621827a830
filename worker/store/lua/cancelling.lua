-- cancelling: a turn that goes on is to end, whoever wants it. Stands behind ending and fence.
--
-- KEYS 1     what the script says; all names are made up as the table in worker.store.keys has them
--
-- `cancel_turn(beginning, id, reason, by, version, retention, output)`: a turn that nobody drives is sealed as
-- cancelled there and then, with `output` (JSON) as its end, behind what discarded attempts cost where no completed
-- call can tell any more. One that is driven is flagged: from here on the fence lets no call, commit or tool of it
-- through, its driver finds it among `cancels`, and whoever drives it next seals it. The first reason stands, and with
-- it who gave it. A flag is looked for among `cancels` for a day; the record keeps it.
-- Gives NONE | NEWER when a newer version has written the turn | ENDED session outcome: it had ended before, nothing
-- was changed | SEALED session | FLAGGED session
local function cancel_turn(beginning, id, reason, by, version, retention, output)
  local record, out = beginning .. 'turn:' .. id, beginning .. 'out:' .. id
  local stored = redis.call('HMGET', record, 'state', 'session', 'v', 'outcome', 'cancel', 'seq', 'at', 'call',
    'committed', 'totals')
  local state, session = stored[1], stored[2]
  if not state then
    return {'NONE'}
  end
  if state == 'sealed' then
    return {'ENDED', session, stored[4]}
  end
  if tonumber(stored[3]) > tonumber(version) then
    return {'NEWER'}
  end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local turn = {
    id = id,
    session = session,
    now = string.format('%.0f', now),
    seq = tonumber(stored[6]),
    at = math.max(now, tonumber(stored[7]))
  }
  local why = stored[5] or ''
  if why == '' then
    why = reason
    redis.call('HSET', record, 'v', version, 'cancel', reason, 'cancelled_by', by, 'cancelled_ms', turn.now)
  else
    redis.call('HSET', record, 'cancel', why)  -- a server counts only this connection's writes for WAITAOF
  end
  if state == 'running' then
    redis.call('ZADD', beginning .. 'cancels', turn.now, id)
    redis.call('ZREMRANGEBYSCORE', beginning .. 'cancels', '-inf', string.format('%.0f', now - 86400000))
    return {'FLAGGED', session}
  end
  local totals, committed = stored[10] or '', tonumber(stored[9])
  local attempts = string.match(totals, '"discarded_resume_attempts": ?(%d+)')
  local tokens = string.match(totals, '"discarded_resume_estimated_input_tokens": ?(%d+)')
  if attempts and committed and tonumber(stored[8]) > committed then
    emit(turn, out, 'o', '{"v":1,"type":"usage","discarded_resume_attempts":' .. attempts ..
      (tokens and ',"discarded_resume_estimated_input_tokens":' .. tokens or '') .. '}')
  end
  emit(turn, out, 'o', output)
  end_turn(turn, beginning, 'cancelled', 'evt_' .. string.sub(id, 6), stored[8], retention)
  redis.call('HSET', record, 'state', 'sealed', 'outcome', 'cancelled', 'reason', why, 'failure', '',
    'correlation_id', '', 'sealed_ms', turn.now, 'lease_ms', 0, 'seq', turn.seq, 'at', string.format('%.0f', turn.at))
  return {'SEALED', session}
end
