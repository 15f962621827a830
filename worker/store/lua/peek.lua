#!lua flags=no-writes
-- peek: some fields of many records in one step, so that counting thousands of turns costs no command each.
--
-- KEYS 1.. hashes
-- ARGV 1.. names of fields
-- Replies the values of each hash, in order; nothing is changed. Runs at maxmemory.
local values = {}
for i = 1, #KEYS do
  values[i] = redis.call('HMGET', KEYS[i], unpack(ARGV))
end
return values
