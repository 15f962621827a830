-- reseal: put a sealed text of an endpoint in the place of the one that was read.
--
-- KEYS  1 the record (hash)
-- ARGV  1 field, 2 the text that was read, 3 the new one
-- Gives {1}, also when the new one stands there already | {0} another text stands there, or none; nothing was changed.
-- The endpoint keeps its version: what is sealed is the same. Refused at maxmemory.

local text = redis.call('HGET', KEYS[1], ARGV[1])
if text ~= ARGV[2] and text ~= ARGV[3] then
  return { 0 }
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return { 1 }
