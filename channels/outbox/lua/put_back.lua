#!lua flags=allow-oom
-- prelude: put
-- put_back: put the log entry of a dead letter back into the log, only if nobody changed the letter since it was read.
--
-- KEYS  1 the log (stream)
-- ARGV  1 and on: the letter as in put, as it is left
-- Gives {1}, also when this very step was taken before, or {0}: it was changed meanwhile, and nothing is changed now.

local one = take_delivery()
local old, mine = stored(one.id), one.was .. '/-'
if old and old.settled == mine then
  return { 1 }
end
local entry = {}
local word = redis.call('HGET', more_of(one.id), 'entry:1')
while word do
  entry[#entry + 1] = word
  word = redis.call('HGET', more_of(one.id), 'entry:' .. #entry + 1)
end
if not old or old.mark ~= one.was or #entry == 0 then
  return { 0 }
end
put(one, old, mine)
redis.call('XADD', KEYS[1], '*', unpack(entry))
return done({ 1 })
