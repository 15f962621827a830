#!lua flags=allow-oom
-- prelude: put
-- adopt: take over deliveries that a release before lanes has stored, each only if nobody changed it since it was read.
--
-- KEYS  1 to 4 the sets of that release, in which they stand no more then
-- ARGV  1 how many that are not stored any more, or not whole, and their ids; 2 how many deliveries, and each as in
--       put; `was` is version:token as that release stored it
-- Gives nothing. Repeated it changes nothing: what was adopted has another form.

local function leave(id)
  for _, set in ipairs(KEYS) do
    redis.call('ZREM', set, id)
  end
end

for _, id in ipairs(take_each(take)) do
  local key = record_of(id)
  local is_old = redis.call('TYPE', key).ok == 'hash'
  local words = is_old and redis.call('HMGET', key, 'version', 'token', 'record') or {}
  if not (words[1] and words[2] and words[3]) then
    leave(id)
  end
end
for _, one in ipairs(take_each(take_delivery)) do
  local key = record_of(one.id)
  if redis.call('TYPE', key).ok == 'hash' then
    local old = redis.call('HMGET', key, 'version', 'token')
    if old[1] .. ':' .. old[2] == one.was then
      local entry, word = {}, redis.call('HGET', key, 'entry:1')
      while word do
        entry[#entry + 1] = word
        word = redis.call('HGET', key, 'entry:' .. #entry + 1)
      end
      redis.call('DEL', key)
      put(one)
      keep_entry(one, entry, 0)
      leave(one.id)
    end
  end
end
return done({})
