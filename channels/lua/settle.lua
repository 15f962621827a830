#!lua flags=allow-oom
-- prelude: put
-- settle: store one delivery as it was decided, only if nobody changed it since it was read.
--
-- KEYS  1 to 4 as in put.lua, 5 the record; 6 the log (stream), to put the entry of a dead letter back into it
-- ARGV  1 and 2 the version and token it was read with, 3 now (ms); then the seven of put.lua
-- Gives {1}, also when this very step was stored before, or {0}: it was changed meanwhile, and nothing is changed now.
-- Drops up to ten expired deliveries from the sets: more than one settle adds.

local step = ARGV[1] .. ':' .. ARGV[2]
if redis.call('HGET', KEYS[5], 'settled') == step then
  return { 1 }
end
local entry = {}
if KEYS[6] then
  local word = redis.call('HGET', KEYS[5], 'entry:1')
  while word do
    entry[#entry + 1] = word
    word = redis.call('HGET', KEYS[5], 'entry:' .. #entry + 1)
  end
end
if not unchanged(KEYS[5], 1) or (KEYS[6] and #entry == 0) then
  return { 0 }
end
put(KEYS[5], 4)
redis.call('HSET', KEYS[5], 'settled', step)
if KEYS[6] then
  redis.call('XADD', KEYS[6], '*', unpack(entry))
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ARGV[3], 'LIMIT', 0, 10)) do
  redis.call('ZREM', KEYS[2], id)
  redis.call('ZREM', KEYS[3], id)
  redis.call('ZREM', KEYS[4], id)
end
return { 1 }
