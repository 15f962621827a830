-- endpoint: make, change or delete a stored endpoint, in one step and only as its writer knows it.
--
-- KEYS  1 the record (hash), 2 every name (sorted set), 3 every name by its version (sorted set), 4 the last change
--       (hash: version, op), 5 names of deleted ones of which something could still be sent (sorted set), 6 what an
--       idempotency key stands for (hash), if there is one
-- ARGV  1 op: names this step, however often it is sent, 2 name, 3 'create', 'replace' or 'delete', 4 the version that
--       is to be replaced or deleted, 5 most endpoints, 6 fingerprint of what is to be made, 7 seconds for which the
--       idempotency key stands, 8.. fields and values of the record
-- Gives {'DONE', version} | {'EXISTS', version} there is one of that name | {'GONE'} there is none | {'CHANGED',
-- version} it has another version | {'SAME', name, version} the idempotency key made that version of this one |
-- {'CONFLICT'} the key stands for something else | {'LEAVING'} one of that name was deleted just now | {'FULL'} there
-- are as many as may be. Sent again as the last change of all, it gives the same. Where nothing is done, a field is
-- written as it was: a server counts only this connection's writes as what WAITAOF waits for. A version is the time of
-- the change in ms, or more than the last one: none comes again, even after the server lost its last writes. The record
-- keeps in which version it was made, and in which its secrets were last changed. Refused at maxmemory.

local op, name, mode = ARGV[1], ARGV[2], ARGV[3]
local last = redis.call('HMGET', KEYS[4], 'op', 'version')
if last[1] == op then
  redis.call('HSET', KEYS[4], 'op', op)
  return { 'DONE', tonumber(last[2]) }
end
local version = redis.call('HGET', KEYS[1], 'version')
if not tonumber(version or '') and redis.call('EXISTS', KEYS[1]) == 1 then
  version = '0' -- it is damaged, and can be deleted
end
if mode == 'create' then
  if KEYS[6] then
    local known = redis.call('HMGET', KEYS[6], 'fingerprint', 'name', 'version')
    if known[1] == ARGV[6] then
      redis.call('HSET', KEYS[6], 'name', known[2])
      return { 'SAME', known[2], tonumber(known[3]) }
    elseif known[1] then
      return { 'CONFLICT' }
    end
  end
  if version then
    return { 'EXISTS', tonumber(version) }
  elseif redis.call('ZSCORE', KEYS[5], name) then
    return { 'LEAVING' }
  elseif redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[5]) then
    return { 'FULL' }
  end
elseif not version then
  return { 'GONE' }
elseif version ~= ARGV[4] then
  return { 'CHANGED', tonumber(version) }
end
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
local fresh = string.format('%d', math.max(now_ms, tonumber(last[2] or 0) + 1))
now_ms = string.format('%d', now_ms)
redis.call('HSET', KEYS[4], 'version', fresh, 'op', op)
if mode == 'delete' then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], name)
  redis.call('ZREM', KEYS[3], name)
  redis.call('ZADD', KEYS[5], now_ms, name)
  return { 'DONE', tonumber(fresh) }
end
if mode == 'create' then
  redis.call('HSET', KEYS[1], 'created_ms', now_ms, 'made', fresh)
  if KEYS[6] then
    redis.call('HSET', KEYS[6], 'fingerprint', ARGV[6], 'name', name, 'version', fresh)
    redis.call('EXPIRE', KEYS[6], ARGV[7])
  end
end
redis.call('HSET', KEYS[1], 'version', fresh, 'updated_ms', now_ms)
for at = 8, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
  if ARGV[at] == 'secrets' then
    redis.call('HSET', KEYS[1], 'keyed', fresh)
  end
end
redis.call('ZADD', KEYS[2], 0, name)
redis.call('ZADD', KEYS[3], fresh, name)
return { 'DONE', tonumber(fresh) }
