#!lua
-- prelude: fence
-- stage: deltas of the open attempt, for those who watch. Only a view: a commit does not need it.
--
-- KEYS 1 turn record; 2 open text; 3 outputs
-- ARGV 1..5 fence; 6 bytes of open text that the sender knows to be stored; then pairs of kind and piece:
--      'd' text, appended to the open text; 'h' thinking, which is not
-- Each piece becomes one output with the field '<kind><call>.<attempt>', the smallest form there is.
-- Of all deltas of a turn only the latest 128 kB are kept, each counted with 48 bytes of its own: the oldest are
-- deleted, of any attempt, so that what a turn streams takes no more room however long it goes on. Other outputs stay.
-- In the record: delta_bytes, and deltas_from, the last output that was looked at, before which no delta is left.
-- Replies OK open-bytes seq | STATE 'attempt' when that attempt is not the open one, 'offset' when the piece does not
-- continue what is stored | the fence's. Refused at maxmemory.
local MOST, EACH = 131072, 48
local turn, refusal = fence('stage')
if not turn then
  return refusal
end
if turn.open ~= turn.attempt then
  return {'STATE', 'attempt'}
end
if turn.open_bytes ~= tonumber(ARGV[6]) then
  return {'STATE', 'offset'}
end
local kept = redis.call('HMGET', KEYS[1], 'delta_bytes', 'deltas_from')
local bytes, from = tonumber(kept[1] or 0), kept[2] or '0-0'
for i = 7, #ARGV, 2 do
  if ARGV[i] == 'd' then
    turn.open_bytes = redis.call('APPEND', KEYS[2], ARGV[i + 1])
  end
  emit(turn, KEYS[3], ARGV[i] .. turn.attempt, ARGV[i + 1])
  bytes = bytes + #ARGV[i + 1] + EACH
end
if bytes > MOST then
  -- More are looked at than came, so this catches up; it never looks at all of them.
  local gone = {}
  for _, entry in ipairs(redis.call('XRANGE', KEYS[3], '(' .. from, '+', 'COUNT', #ARGV)) do
    if bytes <= MOST then
      break
    end
    from = entry[1]
    if entry[2][1] ~= 'o' then
      gone[#gone + 1] = from
      bytes = bytes - #entry[2][2] - EACH
    end
  end
  if #gone > 0 then
    redis.call('XDEL', KEYS[3], unpack(gone))
  end
end
return done(turn, {'OK', turn.open_bytes, turn.seq}, 'open_bytes', turn.open_bytes, 'delta_bytes', bytes,
  'deltas_from', from)
