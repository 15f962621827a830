#!lua flags=allow-oom
-- waiting: which messages may join the turn at the head of a session's queue just now. Only looks.
--
-- KEYS 1 queue
-- ARGV 1 turn; 2 what the names of the partition's keys begin with; 3 record version that the sender reads; 4 most
--      messages; 5 most bytes of them together
-- Looks at the turns directly behind it, and stops at the first that may not join: one that was not submitted to join,
-- or with another agent, other destinations or another requester, that was ever driven, or that a newer version has
-- written.
-- Replies {turn, message, turn, message, ...}; nothing where the turn is not at the head, or was not submitted to join.
local head = ARGV[2] .. 'turn:' .. ARGV[1]
local taken = redis.call('HMGET', head, 'joins', 'agent', 'destinations', 'requester')
local found, bytes = {}, 0
if redis.call('LINDEX', KEYS[1], 0) ~= ARGV[1] or taken[1] ~= '1' then
  return found
end
for _, id in ipairs(redis.call('LRANGE', KEYS[1], 1, ARGV[4])) do
  local stored = redis.call('HMGET', ARGV[2] .. 'turn:' .. id, 'v', 'state', 'joins', 'agent', 'destinations', 'epoch',
    'message', 'requester')
  local joins = stored[3] == '1' and stored[4] == taken[2] and stored[5] == taken[3]
    and (stored[8] or '') == (taken[4] or '')
  local is_fresh = stored[2] == 'queued' and stored[6] == '0' and tonumber(stored[1]) <= tonumber(ARGV[3])
  bytes = bytes + #(stored[7] or '')
  if not (joins and is_fresh) or bytes > tonumber(ARGV[5]) then
    return found
  end
  found[#found + 1] = id
  found[#found + 1] = stored[7]
end
return found
