#!lua flags=allow-oom
-- prelude: put
-- leave: let a name whose endpoint was deleted be free again, once its lane holds nothing that could still be sent.
--
-- KEYS  1 the names whose endpoints were deleted (sorted set)
-- ARGV  1 the name
-- Gives {1, 0}, also when it was free already | {0, how many are in flight}: something is left, nothing was changed.
-- What was known of the lane goes with it: a later endpoint of that name begins anew. Repeated it gives the same.

local name = take()
if not redis.call('ZSCORE', KEYS[1], name) then
  return { 1, 0 }
end
local flying = redis.call('ZCARD', OF .. 'flight:' .. name)
if flying + redis.call('ZCARD', OF .. 'due:' .. name) + redis.call('ZCARD', OF .. 'held:' .. name) > 0 then
  return { 0, flying }
end
redis.call('DEL', OF .. 'lane:' .. name)
redis.call('ZREM', OF .. 'lanes', name)
redis.call('ZREM', KEYS[1], name)
return { 1, 0 }
