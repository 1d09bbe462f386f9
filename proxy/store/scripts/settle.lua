-- End one request: give back what it holds, book what it took, and put its usage record into the outbox.
--
-- Promises: checks everything, then changes everything; a call that fails may be made again. Idempotent by request,
-- until its tombstone's life is over. What was held is read from the hold itself, so it is given back once and exactly.
-- Room that has refilled is not given a second time, nor what a limit forgot when it was reset. A calendar window that
-- is over is not touched, and comes to life no more. Integers below 2^53 only.
--
-- KEYS[1]  hold of the request      hash    becomes the tombstone: state, at, booked; lives ARGV[3]
-- KEYS[2]  leases                   zset    loses the request; keeps its life
-- KEYS[3]  outbox                   stream  gets the record; has no life time, it is drained
-- KEYS[4…] one per limit            hash    spent, carry, at, held; lives until all is refilled and ARGV[5] more,
--                                           while room is held in it as long as a hold, or until the
--                                           end of its calendar window
-- ARGV[1]  request id
-- ARGV[2]  how: 'settle' with the truth, 'orphan' at worst since the lease is over, 'release' what was never used
-- ARGV[3]  life of the tombstone (ms)
-- ARGV[4]  usage record (JSON); empty for none
-- ARGV[5]  life of a limit's key beyond its refilling (ms)
-- ARGV[6]  how long ago the request ended (ms): it is booked then, but not before what is booked already, and a level
--          refills up to there; so time refills it once, however many are told late
-- ARGV[7]  of a truth without a hold or tombstone: 'book' it, or 'skip' its limits, as it may have been booked before
-- then five for each limit, in the order of KEYS[4…]:
--   capacity, amount, period   the tank: `amount` comes back every `period` ms
--   taken                      what the request takes in all; nothing of an orphan that was admitted for a hit only
--                              and holds none of it; not read for 'release'
--   until                      end of its calendar window (ms of the store's clock), 0 for none
--
-- Returns {what happened, time of the store (ms), then spent, carry, held for each limit}; what happened:
--   'settled', 'orphaned', 'released', 'corrected' (the truth after an orphan's worst case, or that nothing was used),
--   'alive' (an orphan whose lease is not over), 'absent' (an orphan without a hold),
--   'ended' (it had ended before: nothing is done)
-- A truth without a hold is booked all the same: the admission was made while the store was away. Where it may have
-- been booked so long ago that its tombstone is gone, only its record is left: whoever reads records takes each
-- request once, limits could not. What nothing was held for fills a tank that refills to its capacity at most: nobody
-- waits for more than one whole refill. The record of a request that was released, since it was refused after all, is
-- kept too.

-- include _level

local FIRST_LIMIT, FIRST_ARGUMENT, PER_LIMIT = 4, 8, 5

local id, how, grace, age = ARGV[1], ARGV[2], tonumber(ARGV[5]), tonumber(ARGV[6])
local limits = {}
for index = FIRST_LIMIT, #KEYS do
  local base = FIRST_ARGUMENT + (index - FIRST_LIMIT) * PER_LIMIT
  local level = load(KEYS[index], tonumber(ARGV[base + 1]), tonumber(ARGV[base + 2]))
  level.capacity = tonumber(ARGV[base])
  level.taken = tonumber(ARGV[base + 3])
  level.ends = tonumber(ARGV[base + 4])
  limits[#limits + 1] = level
end

redis.call('XLEN', KEYS[3]) -- fails while nothing has been changed, should another have put something else there
local lease = redis.call('ZSCORE', KEYS[2], id)
local hold = redis.call('HMGET', KEYS[1], 'state', 'at', 'held', 'spent', 'booked', 'verdict')
local state, since = hold[1], tonumber(hold[2] or now)

if how == 'orphan' then
  if state == 'held' and lease and tonumber(lease) > now then
    return reply('alive', limits)
  elseif state ~= 'held' then
    redis.call('ZREM', KEYS[2], id)
    return reply(state and 'ended' or 'absent', limits)
  end
elseif state == 'settled' or (how == 'release' and state == 'released') then
  return reply('ended', limits)
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

-- How far a booking fills a level: one that nothing was held for, a tank that refills to its capacity.
local function most(level)
  if state == 'held' or level.amount == 0 then
    return MAX_LEVEL
  end
  return math.max(level.scaled, level.capacity * level.period)
end

if ARGV[4] ~= '' then
  redis.call('XADD', KEYS[3], '*', 'record', ARGV[4])
end

local is_doubtful = how == 'settle' and not state and ARGV[7] == 'skip'
local booked = {}
for index, level in ipairs(limits) do
  local has = spent[index] or 0
  local takes = level.taken
  local is_untouched = hold[6] == 'hit' and has + (held[index] or 0) == 0
  if how == 'release' or (how == 'orphan' and is_untouched) then
    takes = 0
  end
  booked[index] = text(takes)
  if not is_doubtful and (level.ends == 0 or now < level.ends) then
    refill(level, math.max(level.at, now - age))
    level.held = math.max(0, level.held - (held[index] or 0))
    if takes >= has then
      level.scaled = math.min(level.scaled + (takes - has) * level.period, most(level))
    elseif since > tonumber(redis.call('HGET', level.key, 'reset') or -1) then
      local refilled = math.max(0, level.at - since) * level.amount
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
if state == 'orphaned' then
  return reply('corrected', limits)
end
return reply(ended[how], limits)
