-- ended: what stands in front of every script that ends a turn: turns that have ended can be listed by how they did.
--
-- KEYS 1 whatever the script says; the set is given apart
--
-- `list_ended(set, turn, now, retention)` puts the turn into the sorted set of those with its outcome, by the ms (`now`)
-- of its end, and drops up to ten whose retention (seconds) is over: more than one end adds. A set to which nothing is
-- added any more expires with its last turn.
local function list_ended(set, turn, now, retention)
  redis.call('ZADD', set, now, turn)
  redis.call('EXPIRE', set, retention)
  local over = string.format('%.0f', now - retention * 1000)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', over, 'LIMIT', 0, 10)) do
    redis.call('ZREM', set, old)
  end
end

