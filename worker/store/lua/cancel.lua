#!lua flags=allow-oom
-- prelude: cancelling
-- prelude: ending
-- prelude: fence
-- cancel: someone wants a turn to end.
--
-- KEYS 1 turn record
-- ARGV 1 turn; 2 what the names of the partition's keys begin with; 3 record version that the sender reads and writes;
--      4 this request, by an id of its own; 5 reason; 6 who wants it; 7 retention in seconds; 8 the turn's end as an
--      output (JSON)
-- Does what `cancel_turn` says. The same request again gets its first answer and changes nothing, whatever has happened
-- since; one that changed nothing is answered by what stands.
-- Replies what `cancel_turn` gives. Runs at maxmemory: what is not wanted makes room.
local known = redis.call('HMGET', KEYS[1], 'cancel_request', 'cancel_reply')
if known[1] == ARGV[4] then
  redis.call('HSET', KEYS[1], 'cancel_request', ARGV[4])
  local words = {}
  for word in string.gmatch(known[2], '%S+') do
    words[#words + 1] = word
  end
  return words
end
local flagged = redis.call('HGET', KEYS[1], 'cancel') or ''
local reply = cancel_turn(ARGV[2], ARGV[1], ARGV[5], ARGV[6], ARGV[3], ARGV[7], ARGV[8])
if reply[1] == 'SEALED' or (reply[1] == 'FLAGGED' and flagged == '') then
  redis.call('HSET', KEYS[1], 'cancel_request', ARGV[4], 'cancel_reply', table.concat(reply, ' '))
end
return reply
