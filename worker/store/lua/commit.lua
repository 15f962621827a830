#!lua flags=allow-oom
-- prelude: ending
-- prelude: fence
-- commit: the open attempt completed its call. Its whole text is written at the marker, whatever was staged; from this
-- step on journal, text, usage and log know the call, and before it none of them did.
--
-- KEYS 1 turn record; 2 text; 3 open text; 4 journal; 5 outputs; 6 session record; 7 log
-- ARGV 1..5 fence; 6 event id; 7 marker that the sender knows; 8 the call's text; 9 the fact (JSON, refers to the text
--      by offset and length); 10 totals (JSON); 11 input tokens of the call or ''; 12 what the names of the partition's
--      keys begin with; 13 session; 14 retention in seconds; 15 the end of a turn that joined, as an output (JSON);
--      16 how many turns the call carried; then of each its id, then of each the fact (JSON); then outputs (JSON, in
--      order; a boundary text refers to the text too)
-- Writes text and marker (UTF-8 bytes), the facts, those of what joined first, the totals, the outputs, one log entry;
-- deletes the open text. The turns that it carried end with this step, as merged into this one, except those that had
-- ended before: a cancel was first, and yet the model has read them.
-- Replies OK marker seq | STATE 'attempt' when that attempt is not the open one, 'marker' when the sender's is not
-- ours, 'carried' when the call carried others | the fence's. Runs at maxmemory: what a model has answered is not lost
-- for want of room.
local turn, refusal = fence('commit')
if not turn then
  return refusal
end
if turn.open ~= turn.attempt then
  return {'STATE', 'attempt'}
end
if turn.marker ~= tonumber(ARGV[7]) then
  return {'STATE', 'marker'}
end
local carried = tonumber(ARGV[16])
if table.concat(ARGV, ' ', 17, 16 + carried) ~= (redis.call('HGET', KEYS[1], 'carried') or '') then
  return {'STATE', 'carried'}
end
redis.call('DEL', KEYS[3])
if ARGV[8] ~= '' then
  turn.marker = redis.call('SETRANGE', KEYS[2], turn.marker, ARGV[8])
end
for i = 17 + carried, 16 + 2 * carried do
  redis.call('RPUSH', KEYS[4], ARGV[i])
end
redis.call('RPUSH', KEYS[4], ARGV[9])
if ARGV[11] ~= '' then
  redis.call('HSET', KEYS[6], 'last_input_tokens', ARGV[11])
end
emit_all(turn, KEYS[5], 17 + 2 * carried)
for i = 17, 16 + carried do
  local id, record = ARGV[i], ARGV[12] .. 'turn:' .. ARGV[i]
  redis.call('HDEL', KEYS[1], 'carried:' .. id)
  local stored = redis.call('HMGET', record, 'state', 'seq', 'at')
  if stored[1] and stored[1] ~= 'sealed' then
    local joined = {id = id, session = ARGV[13], now = turn.now, seq = tonumber(stored[2]),
      at = math.max(tonumber(turn.now), tonumber(stored[3]))}
    emit(joined, ARGV[12] .. 'out:' .. id, 'o', ARGV[15])
    end_turn(joined, ARGV[12], 'merged', 'evt_' .. string.sub(id, 6), 0, ARGV[14])
    redis.call('HSET', record, 'state', 'sealed', 'outcome', 'merged', 'reason', '', 'failure', '',
      'correlation_id', '', 'sealed_ms', turn.now, 'lease_ms', 0, 'seq', joined.seq, 'merged_into', ARGV[2],
      'at', string.format('%.0f', joined.at))
  end
end
redis.call('XADD', KEYS[7], '*', 'v', 1, 'kind', 'commit', 'event', ARGV[6], 'turn', ARGV[2], 'call', ARGV[3],
  'out', string.format('%.0f-%.0f', turn.at, turn.seq), 'begin', ARGV[7], 'end', turn.marker)
return done(turn, {'OK', turn.marker, turn.seq}, 'open', '', 'open_bytes', 0, 'marker', turn.marker, 'totals', ARGV[10],
  'committed', ARGV[3], 'carried', '')
