#!lua flags=allow-oom
-- sweep: what of one kind someone should look at. Any number of sweepers may ask.
--
-- KEYS 1 due
-- ARGV 1 how many members to look at, the oldest first; 2 ms after which one that nobody dealt with is due again; 3 what
--      the members of the kind begin with
-- Replies what stands behind that in the members whose time has come, and pushes these on.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local again = string.format('%.0f', now + ARGV[2])
local found = {}
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'LIMIT', 0, ARGV[1])
for _, member in ipairs(due) do
  if string.sub(member, 1, #ARGV[3]) == ARGV[3] then
    redis.call('ZADD', KEYS[1], again, member)
    found[#found + 1] = string.sub(member, #ARGV[3] + 1)
  end
end
return found
