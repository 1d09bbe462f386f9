-- The epoch of the cache: shared by the scripts that write `-- include _epoch` where they want it.
--
-- Promises: the epoch only grows. It is the time of the store (ms) at which it last grew, or one more than it was where
-- that is later; so it grows though the store lost what it knew, and no two changes share one. Where there was none,
-- nobody knows what has been purged: all that is older than the new one is, `purged:all`. Not a script of its own: it
-- reads no ARGV, and of the KEYS the including script names those that hold an epoch.
--
-- Returns nothing. Leaves `now`, the time of the store (ms), and these functions:
--   text(number)                  writes a whole number with all its digits
--   read_epoch(key)               reads the epoch in a hash; nothing if there is none, or what can be none
--   grow(key, least)              lets it grow, to `least` at least, and returns the new one
--   keep(key)                     lets a hash live LIFE from now: workers prolong that while there are any

local LIFE = 7776000000 -- ms, 90 days; as `LIFE_MILLISECONDS` in Python
local MAX_DIGITS = 15 -- as many as a time of the next 28,000 years has, and well below 2^53

local function text(number)
  return string.format('%d', number)
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function read_epoch(key)
  local epoch = redis.call('HGET', key, 'epoch')
  return epoch and #epoch <= MAX_DIGITS and tonumber(string.match(epoch, '^[1-9]%d*$')) or nil
end

local function keep(key)
  redis.call('PEXPIRE', key, text(LIFE))
end

local function grow(key, least)
  local epoch = read_epoch(key)
  local grown = math.max(now, (epoch or 0) + 1, least)
  redis.call('HSET', key, 'epoch', text(grown))
  if not epoch then
    redis.call('HSET', key, 'purged:all', text(grown))
  end
  keep(key)
  return grown
end
