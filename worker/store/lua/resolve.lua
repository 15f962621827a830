#!lua flags=allow-oom
-- prelude: decide
-- prelude: fence
-- resolve: a person answers an approval request. Of all answers, and the end of its time, the first one counts.
--
-- KEYS 1..7 as decide
-- ARGV 1..6 as decide; 7 what the names of the partition's keys begin with (which session it is, only the record
--      knows); 8 name of the request; 9 option; 10 who answers; 11 fact (JSON); 12 output (JSON); 13 '1' when the
--      option approves the tool for the session; 14 most refusals that are remembered of a request; then pairs of code
--      and notice (JSON)
-- A turn in which a newer version has written is left to that version: the answer is not stored, and NO persist_failed.
-- Checks, in this order: the request is known, it waits, this person may answer, the option is offered. An answer whose
-- time is over expires the request. A refusal puts its notice into the outputs of a turn that goes on; no refusal
-- touches marker, attempt, journal or state. A grant for the session is kept in the session record.
-- The same answer by the same person again gets the first reply and changes nothing, whatever has happened since.
-- (One field is written again: a server counts only this connection's writes as what WAITAOF waits for.)
-- Replies OK session | NO code. Runs at maxmemory: a turn that waits for a person must come to its end.
local turn = asked_turn()
local name, option, by = ARGV[8], ARGV[9], ARGV[10]
local refused = name .. ':refused:' .. option .. ':' .. by
local asked = redis.call('HMGET', KEYS[2], name .. ':options', name .. ':expires', name .. ':option', name .. ':by',
  refused, name .. ':refusals', name .. ':tool')
if turn and turn.is_newer then
  return {'NO', 'persist_failed'}
end
if not turn or not asked[1] then
  return {'NO', 'no_history'}
end
if asked[3] == option and asked[4] == by then
  redis.call('HSET', KEYS[2], name .. ':by', by)
  return {'OK', turn.session}
end
if asked[5] then
  redis.call('HSET', KEYS[2], refused, asked[5])
  return {'NO', asked[5]}
end
if turn.state == 'sealed' then
  return {'NO', 'prompt_expired'}
end

local function offered()
  for key in string.gmatch(asked[1], '%S+') do
    if key == option then
      return true
    end
  end
  return false
end

local why
if asked[3] then
  why = 'prompt_expired'
elseif (tonumber(asked[2]) or math.huge) <= turn.now then
  why = 'prompt_expired'
  expire_overdue(turn)
elseif turn.requester ~= '' and turn.requester ~= by then
  why = 'wrong_requester'
elseif not offered() then
  why = 'option_unavailable'
else
  decide(turn, name, option, by, ARGV[11], ARGV[12])
  if ARGV[13] == '1' then
    redis.call('HSET', ARGV[7] .. 'session:' .. turn.session, 'grant:' .. asked[7], ARGV[2] .. name)
  end
  close(turn)
  return {'OK', turn.session}
end
if tonumber(asked[6] or 0) < tonumber(ARGV[14]) then
  redis.call('HINCRBY', KEYS[2], name .. ':refusals', 1)
  redis.call('HSET', KEYS[2], refused, why)
  for i = 15, #ARGV, 2 do
    if ARGV[i] == why and turn.decided == 0 then
      emit(turn, KEYS[4], 'o', ARGV[i + 1])
    end
  end
end
close(turn)
return {'NO', why}
