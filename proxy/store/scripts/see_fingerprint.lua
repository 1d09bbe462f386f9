-- Note that a deployment has answered with a fingerprint; retire those that it no longer shows.
--
-- Promises: the arithmetic of `policies/fingerprints.py`. The epoch grows if one is retired or lives again. Answers may
-- be told in another order than they came, and again: what is known already changes nothing. Integers below 2^53 only.
--
-- KEYS[1]  cache                    hash    epoch; retired:<deployment>:<fingerprint> -> the epoch in which it was
--                                           retired; purged:deployment:<deployment> -> the last such epoch of those
--                                           that are not followed any more; lives LIFE, see `keep`
-- KEYS[2]  fingerprints             hash    by deployment, in MessagePack: the model that was asked for last, and its
--                                           fingerprints, each with the times (ms) when it was shown first and last,
--                                           when another was first since, and since when it is retired; lives LIFE
-- ARGV[1]  deployment, without a colon
-- ARGV[2]  model
-- ARGV[3]  fingerprint
-- ARGV[4]  when it was shown (ms of the store's clock); what is later than now is now
-- ARGV[5]  window (ms)
-- ARGV[6]  how many fingerprints of the deployment are kept
--
-- Returns the epoch; 0 if there is none.

-- include _epoch

local FINGERPRINT, FIRST, LAST, OTHER, RETIRED = 1, 2, 3, 4, 5

local deployment, fingerprint = ARGV[1], ARGV[3]
local at = math.min(tonumber(ARGV[4]), now)
local window, most = tonumber(ARGV[5]), tonumber(ARGV[6])

local epoch = read_epoch(KEYS[1]) or 0 -- fails while nothing has been changed, should another have put something there
local function load()
  local packed = redis.call('HGET', KEYS[2], deployment)
  local is_read, known = pcall(cmsgpack.unpack, packed or '')
  if packed and is_read and type(known) == 'table' and type(known[2]) == 'table' then
    return known[2]
  end
  return {}
end

local has_changed = false
local retired_now = {}

local function field(name)
  return 'retired:' .. deployment .. ':' .. name
end

local function show(known)
  local before, since = nil, 0
  for _, each in ipairs(known) do
    if each[FINGERPRINT] == fingerprint then
      before = each
    elseif each[LAST] > at and (since == 0 or each[LAST] < since) then
      since = each[LAST]
    end
  end
  if not before then
    before = { fingerprint, at, at, since, 0 }
    known[#known + 1] = before
  elseif at <= before[LAST] then
    before[FIRST] = math.min(before[FIRST], at)
    return before
  end
  before[LAST], before[OTHER], before[RETIRED] = at, since, 0
  if redis.call('HDEL', KEYS[1], field(fingerprint)) == 1 then
    has_changed = true
  end
  return before
end

local function look_at_others(known, shown)
  for _, each in ipairs(known) do
    if each ~= shown and at > each[LAST] then
      each[OTHER] = each[OTHER] == 0 and at or math.min(each[OTHER], at)
      if each[RETIRED] == 0 and at - each[OTHER] >= window then
        each[RETIRED] = at
        retired_now[#retired_now + 1] = field(each[FINGERPRINT])
      end
    end
  end
end

-- Follow the one no longer that was unseen for longest. If it is retired, answers that were fetched before that stay stale.
local function drop(known, shown)
  local place
  for index, each in ipairs(known) do
    if each ~= shown and (not place or each[LAST] < known[place][LAST]) then
      place = index
    end
  end
  local name = field(table.remove(known, place)[FINGERPRINT])
  local retired = tonumber(redis.call('HGET', KEYS[1], name) or 0)
  if retired > 0 then
    local floor = 'purged:deployment:' .. deployment
    redis.call('HSET', KEYS[1], floor, text(math.max(retired, tonumber(redis.call('HGET', KEYS[1], floor) or 0))))
    redis.call('HDEL', KEYS[1], name)
  end
end

local known = load()
local shown = show(known)
look_at_others(known, shown)
if has_changed or #retired_now > 0 then
  epoch = grow(KEYS[1], 0)
  for _, name in ipairs(retired_now) do
    redis.call('HSET', KEYS[1], name, text(epoch))
  end
end
while #known > most do
  drop(known, shown)
end
redis.call('HSET', KEYS[2], deployment, cmsgpack.pack({ ARGV[2], known }))
keep(KEYS[2])
return epoch
