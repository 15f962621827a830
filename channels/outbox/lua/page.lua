-- page: some of a sorted set in its order, from a place on: the one behind an id, also where many have its score.
--
-- KEYS  1 the set
-- ARGV  1 the score of the place, 2 its id, which need not stand there any more; empty: from that score on, 3 how many,
--       4 down: what stands before the place, backwards; else what stands behind it
-- Gives id, score, id, score ...

local set, score, id, count, down = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == 'down'

-- Of how many with that score the id is lower than ours, or is ours where `and_ours`.
local function below(first, tied, and_ours)
  local low, high = 0, tied
  while low < high do
    local middle = math.floor((low + high) / 2)
    local there = redis.call('ZRANGE', set, first + middle, first + middle)[1]
    if there < id or (and_ours and there == id) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local first = redis.call('ZCOUNT', set, '-inf', '(' .. score)
local tied = redis.call('ZCOUNT', set, score, score)
if down then
  local over = redis.call('ZCARD', set) - first - (id == '' and tied or below(first, tied, false))
  return redis.call('ZREVRANGE', set, over, over + count - 1, 'WITHSCORES')
end
first = first + (id == '' and 0 or below(first, tied, true))
return redis.call('ZRANGE', set, first, first + count - 1, 'WITHSCORES')
