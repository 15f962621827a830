-- put: what a stored delivery consists of, for the scripts that store one. Not a script of its own.
--
-- KEYS  1 due, 2 dead, 3 forget (sorted sets: id by the ms at which to look at it, since which it is dead, at which its
--       record expires), 4 index (sorted set: id by its place in the log)
-- A delivery is seven arguments from `at`: id, version, token, record (JSON), due, dead, forget (ms, or empty: not in
-- that set). Its key is given apart.

local FIELDS = 7

local function place(set, id, score)
  if score == '' then
    redis.call('ZREM', set, id)
  else
    redis.call('ZADD', set, score, id)
  end
end

local function put(key, at)
  local id, forget = ARGV[at], ARGV[at + 6]
  redis.call('HSET', key, 'version', ARGV[at + 1], 'token', ARGV[at + 2], 'record', ARGV[at + 3])
  place(KEYS[1], id, ARGV[at + 4])
  place(KEYS[2], id, ARGV[at + 5])
  place(KEYS[3], id, forget)
  if forget == '' then
    redis.call('PERSIST', key)
  else
    redis.call('PEXPIREAT', key, forget)
  end
end

-- Let a dead letter keep the words of its log entry, without the first `left_out` of them.
local function keep(key, words, left_out)
  for number = left_out + 1, #words do
    redis.call('HSET', key, 'entry:' .. number - left_out, words[number])
  end
end

-- Whether the stored delivery is still the one that the caller read: version and token, two arguments from `at`.
local function unchanged(key, at)
  local stored = redis.call('HMGET', key, 'version', 'token')
  return stored[1] == ARGV[at] and stored[2] == ARGV[at + 1]
end
