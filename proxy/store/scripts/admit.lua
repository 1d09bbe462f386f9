-- Admit one request to all its limits, or to none.
--
-- Promises: checks everything, then changes everything; a refusal, a call after its deadline and a call for the wrong
-- calendar window take nothing. A limit that is observed refuses nothing, and is taken from though it has no room.
-- Idempotent by request: a repeated call answers as the first one did and takes nothing again; a request that has ended
-- already is not admitted any more. Integers below 2^53 only.
--
-- KEYS[1]  hold of the request      hash    lives ARGV[4], replaced by a tombstone when the request ends
-- KEYS[2]  leases                   zset    request id by the end of its lease (ms); lives ARGV[4] from its last change
-- KEYS[3…] one per limit            hash    spent, carry, at, held; lives until all is refilled and ARGV[5] more,
--                                           or until the end of its calendar window
-- ARGV[1]  request id
-- ARGV[2]  deadline: latest time of the store (ms) at which this call may still take something
-- ARGV[3]  lease (ms)
-- ARGV[4]  life of the hold (ms)
-- ARGV[5]  life of a limit's key beyond its refilling (ms)
-- ARGV[6]  hits: 'no' the answer can not come from the cache, 'maybe' it can, 'only' nothing else is wanted
-- ARGV[7]  usage record to book should nobody settle (JSON, not read here)
-- ARGV[8]  the limits as `settle` wants them (not read here)
-- then nine for each limit, in the order of KEYS[3…]:
--   how      'spend' at once, 'hold' until settled, or 'miss': hold, and hits need no room
--   mode     'enforce', or 'observe': admit all the same
--   capacity, amount, period   the tank: `amount` comes back every `period` ms
--   ask      room that there has to be
--   takes    what is spent or held of it: all of the ask, or 0 where only the settlement takes
--   from, until                its calendar window (ms of the store's clock), 0 and 0 for none
--
-- Returns {verdict, time of the store (ms), then spent, carry, held for each limit, after what was taken, and last the
-- observed limits that had no room, as text: for each its number, from 1, and what was left before}; verdicts:
--   'admitted', 'hit' (for a hit only: requests are held instead of spent), 'refused',
--   'late' (after the deadline), 'moved' (not within a calendar window), 'ended' (settled or released before);
--   'late', 'moved' and 'ended' come with neither.

-- include _level

local FIRST_LIMIT, FIRST_ARGUMENT, PER_LIMIT = 3, 9, 9

local grace = tonumber(ARGV[5])
local hits = ARGV[6]
local limits = {}
local moved = false
for index = FIRST_LIMIT, #KEYS do
  local base = FIRST_ARGUMENT + (index - FIRST_LIMIT) * PER_LIMIT
  local level = load(KEYS[index], tonumber(ARGV[base + 3]), tonumber(ARGV[base + 4]))
  refill(level, now)
  level.how = ARGV[base]
  level.is_observed = ARGV[base + 1] == 'observe'
  level.capacity = tonumber(ARGV[base + 2])
  level.ask = tonumber(ARGV[base + 5])
  level.takes = tonumber(ARGV[base + 6])
  level.ends = tonumber(ARGV[base + 8])
  if level.ends > 0 and (now < tonumber(ARGV[base + 7]) or now >= level.ends) then
    moved = true
  end
  limits[#limits + 1] = level
end

redis.call('ZCARD', KEYS[2]) -- fails while nothing has been changed, should another have put something else there
local function reply_with(verdict, observed)
  local told = reply(verdict, limits)
  told[#told + 1] = observed
  return told
end

local before = redis.call('HMGET', KEYS[1], 'state', 'verdict', 'observed')
if before[1] == 'held' then
  return reply_with(before[2], before[3] or '')
elseif before[1] then
  return { 'ended', now }
elseif now > tonumber(ARGV[2]) then
  return { 'late', now }
elseif moved then
  return { 'moved', now }
end

local function fits(level)
  return level.scaled + (level.held + level.ask) * level.period <= level.capacity * level.period
end

local function left(level)
  return math.max(0, math.floor((level.capacity * level.period - level.scaled) / level.period) - level.held)
end

local verdict, observed = hits == 'only' and 'hit' or 'admitted', {}
for index, level in ipairs(limits) do
  if not (hits == 'only' and level.how == 'miss') and not fits(level) then
    if level.is_observed then
      observed[#observed + 1] = index .. ' ' .. text(left(level))
    elseif hits == 'maybe' and level.how == 'miss' then
      verdict = 'hit'
    else
      return reply_with('refused', '')
    end
  end
end
observed = table.concat(observed, ' ')

local held, spent = {}, {}
for index, level in ipairs(limits) do
  held[index], spent[index] = '0', '0'
  if verdict == 'admitted' and level.how == 'spend' then
    level.scaled = math.min(level.scaled + level.takes * level.period, MAX_LEVEL)
    spent[index] = text(level.takes)
  elseif verdict == 'admitted' or level.how ~= 'miss' then
    local most = math.max(level.held, math.floor(MAX_LEVEL / level.period))
    local holds = math.min(level.held + level.takes, most) - level.held
    level.held = level.held + holds
    held[index] = text(holds)
  end
  if held[index] ~= '0' or spent[index] ~= '0' then
    save(level, grace, level.ends)
  end
end

redis.call('HSET', KEYS[1], 'state', 'held', 'verdict', verdict, 'at', text(now), 'observed', observed,
  'held', table.concat(held, ' '), 'spent', table.concat(spent, ' '), 'record', ARGV[7], 'limits', ARGV[8])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('ZADD', KEYS[2], text(now + tonumber(ARGV[3])), ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return reply_with(verdict, observed)
