-- ending: what the end of a turn changes beside its own record, whoever ends it: its owner, a cancel, the turn that it
-- joined. Stands behind fence.
--
-- KEYS 1     the turn record, or what the script says; all names are made up as the table in worker.store.keys has them
--
-- `end_turn(turn, beginning, outcome, event, call, retention)`: the turn (its `id`, `session` and `now`) leaves the
-- queue for the history (which keeps the last 1,000; a turn that was merged is in that of the turn it joined), one log
-- entry tells of it, and its keys expire after the retention, in seconds; so does its place among those that ended so.
-- What a person was asked waits no more. If it stood at the head of its queue, the session is due now if another turn
-- waits; else it is due no more, and what it keeps expires with its last turn.
local function end_turn(turn, beginning, outcome, event, call, retention)
  local queue, due = beginning .. 'queue:' .. turn.session, beginning .. 'due'
  local history, session = beginning .. 'history:' .. turn.session, beginning .. 'session:' .. turn.session
  local approvals = beginning .. 'approvals:' .. turn.id
  local was_head = redis.call('LINDEX', queue, 0) == turn.id
  redis.call('XADD', beginning .. 'log', '*', 'v', 1, 'kind', 'seal', 'event', event, 'turn', turn.id, 'call', call,
    'outcome', outcome)
  redis.call('LREM', queue, 1, turn.id)
  if outcome ~= 'merged' then
    redis.call('RPUSH', history, turn.id)
    redis.call('LTRIM', history, -1000, -1)
  end
  local ended = beginning .. 'ended:' .. outcome
  redis.call('ZADD', ended, turn.now, turn.id)
  redis.call('EXPIRE', ended, retention)
  local over = string.format('%.0f', turn.now - retention * 1000)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', ended, '-inf', over, 'LIMIT', 0, 10)) do
    redis.call('ZREM', ended, old)
  end
  redis.call('ZREM', beginning .. 'live', turn.id)
  redis.call('ZREM', beginning .. 'cancels', turn.id)
  redis.call('ZREM', due, 'approval:' .. turn.id)
  for name in string.gmatch(redis.call('HGET', approvals, 'pending') or '', '%S+') do
    redis.call('ZREM', beginning .. 'waiting', 'appr_' .. string.sub(turn.id, 6) .. '_' .. name)
  end
  for _, kind in ipairs({'turn:', 'text:', 'journal:', 'out:', 'approvals:'}) do
    redis.call('EXPIRE', beginning .. kind .. turn.id, retention)
  end
  if not was_head then
    return
  end
  redis.call('ZREM', beginning .. 'driven', turn.session)
  if redis.call('EXISTS', queue) == 1 then
    redis.call('ZADD', due, turn.now, 'lease:' .. turn.session)
  else
    redis.call('ZREM', due, 'lease:' .. turn.session)
    redis.call('EXPIRE', history, retention)
    redis.call('EXPIRE', session, retention)
  end
end
