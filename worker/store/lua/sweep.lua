#!lua flags=allow-oom
-- sweep: what of one kind someone should look at. Any number of sweepers may ask.
--
-- KEYS 1 due; 2 how far the look beyond all times has come; 3 driven, where the kind is the leases of sessions
-- ARGV 1 how many members to give at most; 2 ms after which one that nobody dealt with is due again; 3 what the members
--      of the kind begin with; 4 how many members of any kind to look at; 5 ms beyond which none of the kind is due:
--      one that is was put there by another clock (before it was put back, or before a failover); 6 how many members of
--      any kind to look at there
-- Looks at the driven sessions whose lease is over first: their turns have begun, and somebody waits in mid-answer.
-- Then at what is due, the oldest first, and past what is of another kind. A driven session that is due no more has
-- ended. Then at what is due beyond all times of the kind: as much may rightly wait there of another kind, a part of it
-- in each sweep, and the next one goes on behind it.
-- Replies what stands behind that in the members whose time has come, and pushes these on.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_ms, again = string.format('%.0f', now), string.format('%.0f', now + ARGV[2])
local far = '(' .. string.format('%.0f', now + ARGV[5])
local most, most_looks, page_of = tonumber(ARGV[1]), tonumber(ARGV[4]), tonumber(ARGV[6])
local found, is_found = {}, {}

local function take(name)
  if #found < most and not is_found[name] then
    is_found[name] = true
    found[#found + 1] = name
  end
end

local function is_wanted(member)
  return string.sub(member, 1, #ARGV[3]) == ARGV[3]
end

local function take_due()
  local looked = 0
  repeat
    local page = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms, 'LIMIT', looked, 1000)
    for _, member in ipairs(page) do
      if is_wanted(member) then
        take(string.sub(member, #ARGV[3] + 1))
      end
    end
    looked = looked + #page
  until #found >= most or #page < 1000 or looked >= most_looks
end

local function take_far()
  local before = tonumber(redis.call('GET', KEYS[2]) or 0)
  local passed = before
  local page = redis.call('ZRANGEBYSCORE', KEYS[1], far, '+inf', 'LIMIT', before, page_of)
  for _, member in ipairs(page) do
    if #found >= most then
      break
    elseif is_wanted(member) then
      take(string.sub(member, #ARGV[3] + 1))
    else
      passed = passed + 1
    end
  end
  if #page < page_of and #found < most then
    passed = 0
  end
  if passed ~= before then
    redis.call('SET', KEYS[2], passed)
  end
end

if KEYS[3] then
  for _, range in ipairs({{'-inf', now_ms}, {far, '+inf'}}) do
    for _, session in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], range[1], range[2], 'LIMIT', 0, most)) do
      local due = redis.call('ZSCORE', KEYS[1], ARGV[3] .. session)
      if not due then
        redis.call('ZREM', KEYS[3], session)
      elseif tonumber(due) <= now or tonumber(due) > now + ARGV[5] then
        take(session)
      else
        redis.call('ZADD', KEYS[3], due, session)
      end
    end
  end
end
take_due()
if #found < most then
  take_far()
end
for _, name in ipairs(found) do
  redis.call('ZADD', KEYS[1], again, ARGV[3] .. name)
  if KEYS[3] then
    redis.call('ZADD', KEYS[3], 'XX', again, name)
  end
end
return found
