#!lua flags=allow-oom
-- health: a process tells what it has seen of providers, and learns which ones all processes leave alone.
--
-- KEYS 1 skipped providers; 2 what this process was last answered; 3.. the record of each provider that is told of
-- ARGV 1 number of the report, rising; 2 deaths that lead to a skip; 3 window in ms; 4 skip in ms; 5 record version;
--      6 ms for which an answer is kept; 7 ms beyond which no skip reaches: one that does was begun by another clock
--      (before it was put back, or before a failover) and is over; 8.. for each provider: name, deaths, completions
-- A provider is skipped when it has died that often within the window, and more often than it has completed. What is
-- told of a skipped one is not counted, and its record ends with the skip: then it begins anew. Counts are kept in
-- slices of a sixth of the window; a slice counts while its first count is younger than the window.
-- A report that was taken before changes nothing: the last one gets its first answer, an older one none.
-- Replies two lists: name, deaths, completions of each provider that this report has led to skip; name, ms left of each
-- that is skipped
local SLICES = 6
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local least, window, skip = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function whole(number)
  return string.format('%.0f', number)
end

local function read(key)
  local record = {deaths = 0, completions = 0, old = {}, slice = {at = -math.huge}}
  local stored = redis.call('HGETALL', key)
  for i = 1, #stored, 2 do
    local field, value = stored[i], stored[i + 1]
    local at = tonumber(field)
    if field == 'v' then
      record.foreign = value ~= ARGV[5]
    elseif field == 'until' and tonumber(value) <= now + ARGV[7] then
      record.skipped = true
    elseif field == 'until' then
      record.old[#record.old + 1] = field
    elseif at and at > now - window and at <= now then
      local deaths, completions = string.match(value, '^(%d+) (%d+)$')
      record.deaths, record.completions = record.deaths + deaths, record.completions + completions
      if at > record.slice.at then
        record.slice = {at = at, deaths = deaths, completions = completions}
      end
    elseif at then
      record.old[#record.old + 1] = field
    end
  end
  return record
end

local function count(key, record, deaths, completions)
  if #record.old > 0 then
    redis.call('HDEL', key, unpack(record.old))
  end
  local slice = record.slice
  if now - slice.at >= window / SLICES then
    slice = {at = now, deaths = 0, completions = 0}
  end
  redis.call('HSET', key, 'v', ARGV[5], whole(slice.at),
    whole(slice.deaths + deaths) .. ' ' .. whole(slice.completions + completions))
  redis.call('PEXPIRE', key, window)
  record.deaths, record.completions = record.deaths + deaths, record.completions + completions
end

local function leave_alone(key, name)
  redis.call('HSET', key, 'until', whole(now + skip))
  redis.call('PEXPIRE', key, skip)
  redis.call('ZADD', KEYS[1], whole(now + skip), name)
  if redis.call('PTTL', KEYS[1]) < skip then
    redis.call('PEXPIRE', KEYS[1], skip)
  end
end

local fresh = {}
if #KEYS > 2 then
  local answer = {}
  for word in string.gmatch(redis.call('GET', KEYS[2]) or '0', '%S+') do
    answer[#answer + 1] = word
  end
  local last = tonumber(table.remove(answer, 1))
  if tonumber(ARGV[1]) == last then
    fresh = answer
  elseif tonumber(ARGV[1]) > last then
    for i = 3, #KEYS do
      local name, deaths, completions = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
      local record = read(KEYS[i])
      if not (record.foreign or record.skipped) then
        count(KEYS[i], record, deaths, completions)
        if record.deaths >= least and record.deaths > record.completions then
          leave_alone(KEYS[i], name)
          for _, word in ipairs({name, whole(record.deaths), whole(record.completions)}) do
            fresh[#fresh + 1] = word
          end
        end
      end
    end
    redis.call('SET', KEYS[2], table.concat({ARGV[1], unpack(fresh)}, ' '), 'PX', ARGV[6])
  end
end

local skipped = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. whole(now), whole(now + ARGV[7]), 'WITHSCORES')
for i = 2, #skipped, 2 do
  skipped[i] = whole(skipped[i] - now)
end
return {fresh, skipped}
