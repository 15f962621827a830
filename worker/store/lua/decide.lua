-- decide: what an answer to an approval request changes, whoever gives it: a person, or the end of its time.
--
-- KEYS 1     the turn record; 2 approvals; 3 journal; 4 outputs; 5 due; 6 waiting; 7 log
-- ARGV 1..6  turn; what the ids of its approvals begin with; its member of due; what a session's member of due begins
--            with; the notice of an expiry (JSON); record version that the sender reads and writes
--
-- `asked_turn()` reads the turn's counters and what nobody has decided, or gives nil when there is no such turn. Where
-- `is_newer`, a newer version has written the record or the approvals: nothing may be changed. What cannot be read of
-- that which waits stays as it is: `unreadable`, its names.
-- `decide(turn, name, option, by, fact, output)` takes one request from those that wait, for good: `fact` and `output`
-- (JSON objects with a field or more; call and attempt are put before them) go to journal and outputs, one entry goes
-- to the log. The id of that event is the approval's with another beginning: an approval is decided once.
-- `expire_overdue(turn)` decides all whose time is over.
-- `make_due(turn)`: the turn is due at the next expiry of what waits, and not at all where nothing does.
-- `close(turn)` stores the counters; if anything was decided, the turn is due at its next expiry, and one that was
-- parked is queued again, due now, with the time that it was parked put to its deadline.
local function asked_turn()
  local stored = redis.call('HMGET', KEYS[1], 'state', 'seq', 'at', 'session', 'requester', 'parked_ms', 'deadline_ms',
    'v')
  if not stored[1] then
    return nil
  end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local asked = redis.call('HMGET', KEYS[2], 'v', 'pending')
  local pending, unreadable = {}, {}
  for name in string.gmatch(asked[2] or '', '%S+') do
    local request = redis.call('HMGET', KEYS[2], name .. ':expires', name .. ':attempt')
    local is_readable = string.find(name, '^%d+_%d+$') and tonumber(request[1]) and tonumber(request[2])
    local names = is_readable and pending or unreadable
    names[#names + 1] = name
  end
  return {
    -- The approvals count their versions for themselves: ask_approval writes 1.
    is_newer = (tonumber(stored[8]) or 0) > tonumber(ARGV[6]) or (tonumber(asked[1]) or 0) > 1,
    state = stored[1],
    seq = tonumber(stored[2]),
    seq_before = tonumber(stored[2]),
    at = math.max(now, tonumber(stored[3])),
    session = stored[4],
    requester = stored[5] or '',
    parked_ms = tonumber(stored[6] or 0),
    deadline_ms = tonumber(stored[7] or 0),
    now = now,
    pending = pending,
    unreadable = unreadable,
    decided = 0
  }
end

local function decide(turn, name, option, by, fact, output)
  local call, index = string.match(name, '^(%d+)_(%d+)$')
  local approval = ARGV[2] .. name
  -- Put together before anything is written: a script that fails half-way is not undone.
  output = '{"call":' .. call .. ',"attempt":' .. redis.call('HGET', KEYS[2], name .. ':attempt') .. ',"approval":"' ..
    approval .. '",' .. string.sub(output, 2)
  local function without(names)
    local others = {}
    for _, other in ipairs(names) do
      if other ~= name then
        others[#others + 1] = other
      end
    end
    return others
  end
  turn.pending, turn.unreadable = without(turn.pending), without(turn.unreadable)
  turn.decided = turn.decided + 1
  fact = '{"kind":"approval_decided","call":' .. call .. ',"index":' .. index .. ',' .. string.sub(fact, 2)
  local number = redis.call('HINCRBY', KEYS[2], 'decisions', 1)
  local kept = table.concat(turn.pending, ' ') .. ' ' .. table.concat(turn.unreadable, ' ')
  redis.call('HSET', KEYS[2], 'pending', kept, 'decision:' .. number, fact, name .. ':option',
    option, name .. ':by', by)
  redis.call('RPUSH', KEYS[3], fact)
  emit(turn, KEYS[4], 'o', output)
  redis.call('ZREM', KEYS[6], approval)
  redis.call('XADD', KEYS[7], '*', 'v', 1, 'kind', 'decision', 'event',
    'evt_' .. string.sub(approval, 6), 'turn', ARGV[1], 'call', call, 'approval', approval)
end

local function expire_overdue(turn)
  for _, name in ipairs(turn.pending) do
    if tonumber(redis.call('HGET', KEYS[2], name .. ':expires')) <= turn.now then
      decide(turn, name, 'expired', '', '{"option":"expired","by":null}',
        '{"type":"approval_decided","option":"expired"}')
      emit(turn, KEYS[4], 'o', ARGV[5])
    end
  end
end

local function make_due(turn)
  local first
  for _, name in ipairs(turn.pending) do
    local expires = tonumber(redis.call('HGET', KEYS[2], name .. ':expires'))
    first = math.min(first or expires, expires)
  end
  if first then
    redis.call('ZADD', KEYS[5], string.format('%.0f', first), ARGV[3])
  else
    redis.call('ZREM', KEYS[5], ARGV[3])
  end
end

local function close(turn)
  if turn.seq > turn.seq_before then
    redis.call('HSET', KEYS[1], 'seq', turn.seq, 'at', string.format('%.0f', turn.at))
  end
  if turn.decided == 0 then
    return
  end
  make_due(turn)
  if turn.state == 'parked' then
    redis.call('HSET', KEYS[1], 'state', 'queued', 'parked_ms', 0, 'deadline_ms',
      string.format('%.0f', turn.deadline_ms + turn.now - turn.parked_ms))
    redis.call('ZADD', KEYS[5], string.format('%.0f', turn.now), ARGV[4] .. turn.session)
  end
end
