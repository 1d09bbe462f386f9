-- What one limit is filled with: shared by the scripts that write `-- include _level` where they want it.
--
-- Promises: the arithmetic of `policies/windows.py`, in integers below 2^53. Not a script of its own: it reads no ARGV,
-- and of the KEYS the including script names those that are loaded.
--
-- Returns nothing. Leaves MAX_LEVEL, `now`, the time of the store (ms), and these functions:
--   text(number)                  writes a whole number with all its digits
--   load(key, amount, period)     reads the level at a key as it was at `level.at`; `amount` comes back every `period`
--                                 ms; what nothing is known of was full of room at all times
--   refill(level, moment)         lets it refill from `level.at` to a later moment, which is its `at` then
--   save(level, grace, ends)      writes it: it lives until `ends`, or until all is refilled and `grace` ms more, and
--                                 while room is held in it as long as a hold: what is held is not forgotten
--   reply(word, levels)           makes {word, now, then spent, carry, held for each level as it is now}

local MAX_LEVEL = 4503599627370496
local HOLD_LIFE = 86400000 -- ms; as `HOLD_LIFE_MILLISECONDS` in Python

local function text(number)
  return string.format('%d', number)
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function load(key, amount, period)
  local kept = redis.call('HMGET', key, 'spent', 'carry', 'at', 'held')
  local carry = math.min(tonumber(kept[2] or 0), period - 1)
  local scaled = math.min(tonumber(kept[1] or 0) * period - carry, MAX_LEVEL)
  return {
    key = key, amount = amount, period = period, scaled = math.max(0, scaled), held = tonumber(kept[4] or 0),
    at = math.min(tonumber(kept[3] or 0), now),
  }
end

local function refill(level, moment)
  level.scaled = math.max(0, level.scaled - (moment - level.at) * level.amount)
  level.at = moment
end

local function spent_and_carry(level)
  local spent = math.ceil(level.scaled / level.period)
  return spent, spent * level.period - level.scaled
end

local function save(level, grace, ends)
  local spent, carry = spent_and_carry(level)
  redis.call('HSET', level.key, 'spent', text(spent), 'carry', text(carry), 'at', text(level.at),
    'held', text(level.held))
  if ends > 0 then
    redis.call('PEXPIREAT', level.key, text(ends))
  else
    local life = grace
    if level.amount > 0 then
      life = life + math.ceil((level.scaled + level.held * level.period) / level.amount)
    end
    if level.held > 0 then
      life = math.max(life, HOLD_LIFE)
    end
    redis.call('PEXPIRE', level.key, text(life))
  end
end

local function reply(word, levels)
  local told = { word, now }
  for _, level in ipairs(levels) do
    refill(level, now)
    local spent, carry = spent_and_carry(level)
    told[#told + 1] = spent
    told[#told + 1] = carry
    told[#told + 1] = level.held
  end
  return told
end
