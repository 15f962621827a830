#!lua flags=allow-oom
-- sweep: what of one kind someone should look at. Any number of sweepers may ask.
--
-- KEYS 1 due; 2 driven, where the kind is the leases of sessions
-- ARGV 1 how many members to give at most; 2 ms after which one that nobody dealt with is due again; 3 what the members
--      of the kind begin with; 4 how many members of any kind to look at; with KEYS 2: 5 ms beyond which no session is
--      due: one that is was put there by another clock
-- Looks at the driven sessions whose lease is over first: their turns have begun, and somebody waits in mid-answer. Then
-- at what is due, the oldest first, and past what is of another kind. A driven session that is due no more has ended.
-- Replies what stands behind that in the members whose time has come, and pushes these on.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_ms, again = string.format('%.0f', now), string.format('%.0f', now + ARGV[2])
local most, most_looks = tonumber(ARGV[1]), tonumber(ARGV[4])
local found, is_found = {}, {}

local function take(name)
  if #found < most and not is_found[name] then
    is_found[name] = true
    found[#found + 1] = name
  end
end

local function take_due(from, to)
  local looked = 0
  repeat
    local page = redis.call('ZRANGEBYSCORE', KEYS[1], from, to, 'LIMIT', looked, 1000)
    for _, member in ipairs(page) do
      if string.sub(member, 1, #ARGV[3]) == ARGV[3] then
        take(string.sub(member, #ARGV[3] + 1))
      end
    end
    looked = looked + #page
  until #found >= most or #page < 1000 or looked >= most_looks
end

local far
if KEYS[2] then
  far = '(' .. string.format('%.0f', now + ARGV[5])
  for _, range in ipairs({{'-inf', now_ms}, {far, '+inf'}}) do
    for _, session in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], range[1], range[2], 'LIMIT', 0, most)) do
      local due = redis.call('ZSCORE', KEYS[1], ARGV[3] .. session)
      if not due then
        redis.call('ZREM', KEYS[2], session)
      elseif tonumber(due) <= now or tonumber(due) > now + ARGV[5] then
        take(session)
      else
        redis.call('ZADD', KEYS[2], due, session)
      end
    end
  end
end
take_due('-inf', now_ms)
if far and #found < most then
  most_looks = 1000
  take_due(far, '+inf')
end
for _, name in ipairs(found) do
  redis.call('ZADD', KEYS[1], again, ARGV[3] .. name)
  if KEYS[2] then
    redis.call('ZADD', KEYS[2], 'XX', again, name)
  end
end
return found
