-- fence: what stands in front of every verb of a turn.
--
-- KEYS 1     the turn record
-- ARGV 1..5  nonce, turn, call, attempt, op number
--
-- `fence(verb)` compares nonce and op number with the record. It gives the turn's counters when the verb may go on, or
-- nil and the reply that the script must return at once, having changed nothing:
--   FENCED        another owner drives the turn, or this one has handed it over
--   SEALED        the turn has ended
--   IGNORED       the op number is older than the last one
--   REWOUND last  the record knows fewer ops than were acknowledged
--   CANCELLED     someone wants the turn to end, and the verb would let it go on
--   TAKEN         the last op has this number and was another verb
--   the first answer, byte for byte, when this op is the last one
-- A script checks all else before it writes. It answers STATE and a reason when the verb is not allowed now.
--
-- `emit(turn, out, field, value)` gives an output its number: the stream id is <ms>-<seq>, seq without gaps from 1.
-- `done(turn, reply, ...)` stores the reply with the op number, and the fields and values given, in one write.
local goes_on = {open_call = true, commit = true, tool_start = true, ask_approval = true, park = true}

local function fence(verb)
  local stored = redis.call('HMGET', KEYS[1], 'nonce', 'op', 'reply', 'state', 'seq', 'at', 'open', 'marker',
    'open_bytes', 'cancel')
  if stored[1] ~= ARGV[1] then
    return nil, {'FENCED'}
  end
  local op, last = tonumber(ARGV[5]), tonumber(stored[2])
  if op < last then
    return nil, {'IGNORED'}
  end
  if op == last then
    local words = {}
    for word in string.gmatch(stored[3], '%S+') do
      words[#words + 1] = word
    end
    if table.remove(words, 1) ~= verb then
      return nil, {'TAKEN'}
    end
    -- A server counts only the writes of this connection as what WAITAOF must wait for.
    redis.call('HSET', KEYS[1], 'op', stored[2])
    return nil, words
  end
  if stored[4] == 'sealed' then
    return nil, {'SEALED'}
  end
  if stored[4] ~= 'running' then
    return nil, {'FENCED'}
  end
  if op > last + 1 then
    return nil, {'REWOUND', stored[2]}
  end
  if goes_on[verb] and (stored[10] or '') ~= '' then
    return nil, {'CANCELLED'}
  end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  return {
    verb = verb,
    now = string.format('%.0f', now),
    seq = tonumber(stored[5]),
    at = math.max(now, tonumber(stored[6])),
    open = stored[7],
    is_open = stored[7] ~= '',
    attempt = ARGV[3] .. '.' .. ARGV[4],
    marker = tonumber(stored[8]),
    open_bytes = tonumber(stored[9])
  }
end

local function emit(turn, out, field, value)
  turn.seq = turn.seq + 1
  redis.call('XADD', out, string.format('%.0f-%.0f', turn.at, turn.seq), field, value)
end

local function emit_all(turn, out, first)
  for i = first, #ARGV do
    emit(turn, out, 'o', ARGV[i])
  end
end

local function done(turn, reply, ...)
  redis.call('HSET', KEYS[1], 'op', ARGV[5], 'reply', turn.verb .. ' ' .. table.concat(reply, ' '),
    'seq', turn.seq, 'at', string.format('%.0f', turn.at), ...)
  return reply
end
