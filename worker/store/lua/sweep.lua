#!lua flags=allow-oom
-- sweep: the sessions that someone should wake. Any number of sweepers may ask.
--
-- KEYS 1 due
-- ARGV 1 most to give; 2 ms after which a session that nobody took is due again; 3 what a session's member begins with
-- Replies the sessions whose time has come, and pushes theirs on.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local again = string.format('%.0f', now + ARGV[2])
local sessions = {}
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'LIMIT', 0, ARGV[1])
for _, member in ipairs(due) do
  if string.sub(member, 1, #ARGV[3]) == ARGV[3] then
    redis.call('ZADD', KEYS[1], again, member)
    sessions[#sessions + 1] = string.sub(member, #ARGV[3] + 1)
  end
end
return sessions
