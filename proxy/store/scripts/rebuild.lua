-- Add to limits what usage records say was taken from them before the store lost its data.
--
-- Promises: adds to each limit once for each contributor, however often it is called; nothing to other data than those
-- that are meant, nor to a calendar window that is over. What is held stays. A tank that refills is not filled above
-- its capacity by it, others up to what is told apart. Integers below 2^53 only.
--
-- KEYS[1]  data                     hash    see begin.lua; keeps its life
-- KEYS[2…] one per limit            hash    spent, carry, at, held, and for the contributor the `since` of the data;
--                                           lives until all is refilled and ARGV[3] more, or until the end of its
--                                           calendar window
-- ARGV[1]  contributor
-- ARGV[2]  since when the store has the data that are meant (ms)
-- ARGV[3]  life of a limit's key beyond its refilling (ms)
-- ARGV[4]  'last' if nothing of this contributor is to follow, else 'more'
-- then six for each limit, in the order of KEYS[2…]:
--   capacity, amount, period   the tank: `amount` comes back every `period` ms
--   taken, at                  what was spent at a moment (ms), in parts of `period`
--   until                      end of its calendar window (ms of the store's clock), 0 for none
--
-- Returns {'added' or 'other' (these are other data: nothing is done), time of the store (ms)}.
-- What was taken refills up to the moment when requests came to these data: from then on the level says when it was
-- right last, but not what it had to refill before. So it is never less than it was, and somewhat more if this is late.

-- include _level

local FIRST_LIMIT, FIRST_ARGUMENT, PER_LIMIT = 2, 5, 6

local contributor, since, grace = ARGV[1], ARGV[2], tonumber(ARGV[3])
if redis.call('HGET', KEYS[1], 'since') ~= since then
  return { 'other', now }
end
local limits = {}
for index = FIRST_LIMIT, #KEYS do
  local base = FIRST_ARGUMENT + (index - FIRST_LIMIT) * PER_LIMIT
  local level = load(KEYS[index], tonumber(ARGV[base + 1]), tonumber(ARGV[base + 2]))
  level.capacity = tonumber(ARGV[base])
  level.taken = tonumber(ARGV[base + 3])
  level.taken_at = math.min(tonumber(ARGV[base + 4]), now)
  level.ends = tonumber(ARGV[base + 5])
  level.is_added = redis.call('HGET', level.key, contributor) == since
  limits[#limits + 1] = level
end

for _, level in ipairs(limits) do
  if not level.is_added and (level.ends == 0 or now < level.ends) then
    refill(level, math.max(level.at, level.taken_at))
    local refilled_until = math.max(level.taken_at, math.min(level.at, tonumber(since)))
    local taken = math.max(0, level.taken - (refilled_until - level.taken_at) * level.amount)
    local most = MAX_LEVEL
    if level.amount > 0 then
      most = math.max(level.scaled, level.capacity * level.period)
    end
    level.scaled = math.min(level.scaled + taken, most)
    refill(level, now)
    redis.call('HSET', level.key, contributor, since)
    save(level, grace, level.ends)
  end
end
if ARGV[4] == 'last' then
  redis.call('HSET', KEYS[1], contributor, since)
end
return { 'added', now }
