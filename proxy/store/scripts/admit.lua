-- Admit one request to all its limits, or to none.
--
-- Promises: checks everything, then changes everything; a refusal, a call after its deadline and a call for the wrong
-- calendar window take nothing. A limit that is observed refuses nothing, and is taken from though it has no room.
-- Idempotent by request: a repeated call answers as the first one did and takes nothing again; a request that has ended
-- already is not admitted any more. Who waits for a limit takes nothing and stands in its line; nobody takes the room
-- that is asked for by those who came before. Integers below 2^53 only.
--
-- KEYS[1]  hold of the request      hash    lives ARGV[4], replaced by a tombstone when the request ends
-- KEYS[2]  leases                   zset    request id by the end of its lease (ms); lives ARGV[4] from its last change
-- KEYS[3]  cache                    hash    epoch; only looked at, and nothing depends on it
-- KEYS[4…3+n] one per limit         hash    spent, carry, at, held; lives until all is refilled and ARGV[5] more,
--                                           while room is held in it as long as a hold, or until the
--                                           end of its calendar window
-- then two for each limit with mode 'wait', in the same order; both live ARGV[10] from their last change:
--          line                     zset    requests that wait, by when they came (µs)
--          waiters                  hash    for each of them until when it is alive (ms), and what it asks
-- ARGV[1]  request id
-- ARGV[2]  deadline: latest time of the store (ms) at which this call may still take something
-- ARGV[3]  lease (ms)
-- ARGV[4]  life of the hold (ms)
-- ARGV[5]  life of a limit's key beyond its refilling (ms)
-- ARGV[6]  hits: 'no' the answer can not come from the cache, 'maybe' it can, 'only' nothing else is wanted
-- ARGV[7]  usage record to book should nobody settle (JSON, not read here)
-- ARGV[8]  the limits as `settle` wants them (not read here)
-- ARGV[9]  when the request came (µs of the store's clock), as told when it was made to wait; 0 at first
-- ARGV[10] how long it is taken to be alive if it waits and does not call again (ms)
-- then ten for each of the n limits, in the order of KEYS[4…]:
--   how      'spend' at once, 'hold' until settled, or 'miss': hold, and hits need no room
--   mode     'enforce', 'observe': admit all the same, or 'wait': rather wait than be refused
--   capacity, amount, period   the tank: `amount` comes back every `period` ms
--   ask      room that there has to be
--   takes    what is spent or held of it: all of the ask, or 0 where only the settlement takes
--   from, until                its calendar window (ms of the store's clock), 0 and 0 for none
--   patience                   how long the request would still wait for it (ms)
--
-- Returns {verdict, time of the store (ms), then spent, carry, held for each limit, after what was taken, and last a
-- text of four lists of numbers, with a semicolon between them: the observed limits that had no room, for each its
-- number, from 1, and what was left before; the limits that are in the way, or are waited for, for each its number, how
-- much is asked for by those who came before, and how many they are; when the request came (µs); the epoch of the cache
-- now, also for a repeated call, 0 if there is none, and nothing where another put something else there}; verdicts:
--   'admitted', 'hit' (for a hit only: requests are held instead of spent), 'refused', 'waiting' (nothing is taken),
--   'late' (after the deadline), 'moved' (not within a calendar window), 'ended' (settled or released before);
--   these three come with neither levels nor text.
-- Nobody waits for what cannot come in time: more than the limit, room that refills too late, the next window; nor
-- behind MOST_WAITING others.

-- include _level

local FIRST_LIMIT, FIRST_ARGUMENT, PER_LIMIT = 4, 11, 10
local MOST_WAITING = 1000
local MOST_AHEAD = 64 -- so many who came before are looked at; behind more of them there is no room

local id, grace, hits = ARGV[1], tonumber(ARGV[5]), ARGV[6]
local came = tonumber(ARGV[9])
if came == 0 then
  came = time[1] * 1000000 + time[2]
end
local limits = {}
local moved = false
local next_line = FIRST_LIMIT + (#ARGV - FIRST_ARGUMENT + 1) / PER_LIMIT
for base = FIRST_ARGUMENT, #ARGV, PER_LIMIT do
  local level = load(KEYS[FIRST_LIMIT + #limits], tonumber(ARGV[base + 3]), tonumber(ARGV[base + 4]))
  refill(level, now)
  level.how = ARGV[base]
  level.is_observed = ARGV[base + 1] == 'observe'
  level.capacity = tonumber(ARGV[base + 2])
  level.ask = tonumber(ARGV[base + 5])
  level.takes = tonumber(ARGV[base + 6])
  level.ends = tonumber(ARGV[base + 8])
  level.ahead = 0
  if ARGV[base + 1] == 'wait' then
    level.line, level.waiters = KEYS[next_line], KEYS[next_line + 1]
    level.patience = tonumber(ARGV[base + 9])
    next_line = next_line + 2
  end
  if level.ends > 0 and (now < tonumber(ARGV[base + 7]) or now >= level.ends) then
    moved = true
  end
  limits[#limits + 1] = level
end

redis.call('ZCARD', KEYS[2]) -- fails while nothing has been changed, should another have put something else there
local function reply_with(verdict, notes)
  local told = reply(verdict, limits)
  local epoch = redis.pcall('HGET', KEYS[3], 'epoch') or '0'
  told[#told + 1] = notes .. ';' .. (type(epoch) == 'string' and epoch or '')
  return told
end

local before = redis.call('HMGET', KEYS[1], 'state', 'verdict', 'notes')
if before[1] == 'held' then
  return reply_with(before[2], before[3] or ';;0')
elseif before[1] then
  return { 'ended', now }
elseif now > tonumber(ARGV[2]) then
  return { 'late', now }
elseif moved then
  return { 'moved', now }
end

-- Find what those ask for who came before and are alive.
local function look_along(level)
  level.dead = {}
  level.rank = redis.call('ZRANK', level.line, id)
  level.before = level.rank or redis.call('ZCOUNT', level.line, '-inf', text(came))
  if level.before == 0 then
    return
  end
  local names = redis.call('ZRANGE', level.line, 0, math.min(level.before, MOST_AHEAD) - 1)
  for index, waiter in ipairs(redis.call('HMGET', level.waiters, unpack(names))) do
    local alive_until, ask = string.match(waiter or '', '^(%d+) (%d+)$')
    if alive_until and tonumber(alive_until) >= now then
      level.ahead = math.min(level.ahead + tonumber(ask), level.capacity)
    else
      level.dead[#level.dead + 1] = names[index]
    end
  end
  if level.before > MOST_AHEAD then
    level.ahead = level.capacity
  end
  level.before = level.before - #level.dead
end

local function leave(level, names)
  if #names > 0 then
    redis.call('ZREM', level.line, unpack(names))
    redis.call('HDEL', level.waiters, unpack(names))
  end
end

local function stand_in_line(level, is_waiting)
  leave(level, level.dead)
  if is_waiting then
    redis.call('ZADD', level.line, text(came), id)
    redis.call('HSET', level.waiters, id, text(now + tonumber(ARGV[10])) .. ' ' .. text(level.ask))
    redis.call('PEXPIRE', level.line, ARGV[10])
    redis.call('PEXPIRE', level.waiters, ARGV[10])
  elseif level.rank then
    leave(level, { id })
  end
end

local function fits(level)
  return level.scaled + (level.held + level.ahead + level.ask) * level.period <= level.capacity * level.period
end

-- Tell whether a request that does not fit may wait: if it would fit in time should all that is held come back.
local function can_wait(level)
  if not level.line or level.patience <= 0 or level.ask > level.capacity then
    return false
  elseif not level.rank and redis.call('ZCARD', level.line) >= MOST_WAITING then
    return false
  end
  local missing = level.scaled + (level.ask - level.capacity) * level.period
  if missing > 0 and level.amount == 0 then
    return level.ends > 0 and level.ends - now <= level.patience
  end
  return missing <= level.patience * level.amount
end

local function left(level)
  return math.max(0, math.floor((level.capacity * level.period - level.scaled) / level.period) - level.held)
end

local observed, in_the_way = {}, {}
local refused, needs_hit, waits, hit_waits = false, false, false, false
for index, level in ipairs(limits) do
  if level.line then
    look_along(level)
  end
  if not (hits == 'only' and level.how == 'miss') and not fits(level) then
    if level.is_observed then
      observed[#observed + 1] = index .. ' ' .. text(left(level))
    else
      in_the_way[#in_the_way + 1] = level
      level.number, level.is_awaited = index, can_wait(level)
      if level.is_awaited then
        waits = true
        hit_waits = hit_waits or level.how ~= 'miss'
      elseif hits == 'maybe' and level.how == 'miss' then
        needs_hit = true
      else
        refused = true
      end
    end
  end
end

local verdict = 'admitted'
if refused then
  verdict = 'refused'
elseif hit_waits or (waits and not needs_hit) then
  verdict = 'waiting'
elseif needs_hit or hits == 'only' then
  verdict = 'hit'
end

local function write_notes()
  local told = {}
  for _, level in ipairs(in_the_way) do
    if verdict ~= 'waiting' or level.is_awaited then
      told[#told + 1] = level.number .. ' ' .. text(level.ahead) .. ' ' .. text(level.before or 0)
    end
  end
  return table.concat(observed, ' ') .. ';' .. table.concat(told, ' ') .. ';' .. text(came)
end

for _, level in ipairs(limits) do
  if level.line then
    stand_in_line(level, verdict == 'waiting' and level.is_awaited)
  end
end
local notes = write_notes()
if verdict == 'waiting' or verdict == 'refused' then
  return reply_with(verdict, notes)
end

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

redis.call('HSET', KEYS[1], 'state', 'held', 'verdict', verdict, 'at', text(now), 'notes', notes,
  'held', table.concat(held, ' '), 'spent', table.concat(spent, ' '), 'record', ARGV[7], 'limits', ARGV[8])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('ZADD', KEYS[2], text(now + tonumber(ARGV[3])), id)
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return reply_with(verdict, notes)
