#!lua flags=allow-oom
-- prelude: put
-- claim: store a batch of deliveries as one claim has decided them, each only if nobody changed it since it was read.
--
-- KEYS  1 to 4 as in put.lua, 5 the claim's memo (list), then the record of each delivery
-- ARGV  1 how long the memo is kept (ms); then for each delivery the version and token it was read with, and the seven
--       of put.lua
-- Gives the records stored, as JSON. Repeated with the same memo it changes nothing and gives the same.
-- Runs at maxmemory: it overwrites in place, and what it lets through frees memory in the end.

if redis.call('EXISTS', KEYS[5]) == 0 then
  local stored = { '' }
  for each = 6, #KEYS do
    local at = 2 + (each - 6) * (FIELDS + 2)
    if unchanged(KEYS[each], at) then
      put(KEYS[each], at + 2)
      stored[#stored + 1] = ARGV[at + 5]
    end
  end
  redis.call('RPUSH', KEYS[5], unpack(stored))
end
-- Also when repeated: a server waits for its disk only on behalf of a connection that has written.
redis.call('PEXPIRE', KEYS[5], ARGV[1])
return redis.call('LRANGE', KEYS[5], 1, -1)
