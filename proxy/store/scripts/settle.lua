-- End one request: give back what it holds, book what it took, and put its usage record into the outbox.
--
-- Promises: idempotent by request, until its tombstone's life is over. What was held is read from the hold itself, so
-- it is given back once and exactly. Room that has refilled is not given a second time. A calendar window that is over
-- is not touched, and comes to life no more. Integers below 2^53 only.
--
-- KEYS[1]  hold of the request      hash    becomes the tombstone: state, at, booked; lives ARGV[3]
-- KEYS[2]  leases                   zset    loses the request; keeps its life
-- KEYS[3]  outbox                   stream  gets the record; has no life time, it is drained
-- KEYS[4…] one per limit            hash    spent, carry, at, held; lives until all is refilled and ARGV[5] more,
--                                           or until the end of its calendar window
-- ARGV[1]  request id
-- ARGV[2]  how: 'settle' with the truth, 'orphan' at worst since the lease is over, 'release' what was never used
-- ARGV[3]  life of the tombstone (ms)
-- ARGV[4]  usage record (JSON); empty for none
-- ARGV[5]  life of a limit's key beyond its refilling (ms)
-- ARGV[6]  how long ago the request ended (ms): what it took has been refilling since
-- then four for each limit, in the order of KEYS[4…]:
--   amount, period             the tank: `amount` comes back every `period` ms
--   taken                      what the request takes in all; of an orphan not more than it held; not read for
--                              'release'
--   until                      end of its calendar window (ms of the store's clock), 0 for none
--
-- Returns {what happened, time of the store (ms), then spent, carry, held for each limit}; what happened:
--   'settled', 'corrected' (the truth after an orphan's worst case), 'orphaned', 'released',
--   'alive' (an orphan whose lease is not over), 'absent' (an orphan without a hold),
--   'ended' (it had ended before: nothing is done)
-- A truth without a hold is booked all the same: the admission was made while the store was away. The record of a
-- request that was released, since it was refused after all, is kept too.

local MAX_LEVEL = 4503599627370496
local FIRST_LIMIT, FIRST_ARGUMENT, PER_LIMIT = 4, 7, 4

local function text(number)
  return string.format('%.0f', number)
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- [level]
local function load(key, amount, period)
  local kept = redis.call('HMGET', key, 'spent', 'carry', 'at', 'held')
  local carry = math.min(tonumber(kept[2] or 0), period - 1)
  local elapsed = math.max(0, now - tonumber(kept[3] or now))
  local spent = math.min(tonumber(kept[1] or 0) * period, MAX_LEVEL)
  return {
    key = key, amount = amount, period = period,
    scaled = math.max(0, spent - carry - elapsed * amount), held = tonumber(kept[4] or 0),
  }
end

local function spent_and_carry(level)
  local spent = math.ceil(level.scaled / level.period)
  return spent, spent * level.period - level.scaled
end

local function save(level, grace, ends)
  local spent, carry = spent_and_carry(level)
  redis.call('HSET', level.key, 'spent', text(spent), 'carry', text(carry), 'at', text(now), 'held', text(level.held))
  if ends > 0 then
    redis.call('PEXPIREAT', level.key, text(ends))
  else
    local refilled = 0
    if level.amount > 0 then
      refilled = math.ceil((level.scaled + level.held * level.period) / level.amount)
    end
    redis.call('PEXPIRE', level.key, text(refilled + grace))
  end
end
-- [/level]

local id, how, grace, age = ARGV[1], ARGV[2], tonumber(ARGV[5]), tonumber(ARGV[6])
local limits = {}
for index = FIRST_LIMIT, #KEYS do
  local base = FIRST_ARGUMENT + (index - FIRST_LIMIT) * PER_LIMIT
  local level = load(KEYS[index], tonumber(ARGV[base]), tonumber(ARGV[base + 1]))
  level.taken = tonumber(ARGV[base + 2])
  level.ends = tonumber(ARGV[base + 3])
  limits[#limits + 1] = level
end

local function answer(happened)
  local reply = { happened, now }
  for _, level in ipairs(limits) do
    local spent, carry = spent_and_carry(level)
    reply[#reply + 1] = spent
    reply[#reply + 1] = carry
    reply[#reply + 1] = level.held
  end
  return reply
end

local hold = redis.call('HMGET', KEYS[1], 'state', 'at', 'held', 'spent', 'booked')
local state, since = hold[1], tonumber(hold[2] or now)

if how == 'orphan' then
  local lease = redis.call('ZSCORE', KEYS[2], id)
  if state == 'held' and lease and tonumber(lease) > now then
    return answer('alive')
  elseif state ~= 'held' then
    redis.call('ZREM', KEYS[2], id)
    return answer(state and 'ended' or 'absent')
  end
elseif state == 'settled' or (how == 'release' and state and state ~= 'held') then
  return answer('ended')
end

local function numbers(line)
  local found = {}
  for number in string.gmatch(line or '', '%d+') do
    found[#found + 1] = tonumber(number)
  end
  return found
end

-- What the store has booked for this request so far, and what it holds.
local held, spent = {}, {}
if state == 'held' then
  held, spent = numbers(hold[3]), numbers(hold[4])
elseif state == 'orphaned' then
  spent = numbers(hold[5])
end

local booked = {}
for index, level in ipairs(limits) do
  local has = spent[index] or 0
  local takes = level.taken
  if how == 'release' then
    takes = 0
  elseif how == 'orphan' then
    takes = math.min(takes, has + (held[index] or 0)) -- who was admitted for a hit only held no tokens
  end
  booked[index] = text(takes)
  if level.ends == 0 or now < level.ends then
    level.held = math.max(0, level.held - (held[index] or 0))
    if takes >= has then
      local more = math.max(0, (takes - has) * level.period - age * level.amount)
      level.scaled = math.min(level.scaled + more, MAX_LEVEL)
    else
      local refilled = math.max(0, now - since) * level.amount
      level.scaled = math.max(0, level.scaled - math.max(0, (has - takes) * level.period - refilled))
    end
    if takes ~= has or (held[index] or 0) > 0 then
      save(level, grace, level.ends)
    end
  end
end

local ended = { settle = 'settled', orphan = 'orphaned', release = 'released' }
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'state', ended[how], 'at', text(now))
if how == 'orphan' then
  redis.call('HSET', KEYS[1], 'booked', table.concat(booked, ' '))
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('ZREM', KEYS[2], id)
if ARGV[4] ~= '' then
  redis.call('XADD', KEYS[3], '*', 'record', ARGV[4])
end
if state == 'orphaned' then
  return answer('corrected')
end
return answer(ended[how])
