-- Forget what limits count as used, and leave an audit record of it.
--
-- Promises: checks everything, then changes everything: limits and record, or neither. What is held stays held, and is
-- settled as ever; what was spent before is not given back a second time by a settlement after. A count that does not
-- exist is not made. Idempotent by call: a repeated call answers as the first one did and changes nothing.
-- Integers below 2^53 only.
--
-- KEYS[1]  audit tail               stream  gets the record; has no life time, it is trimmed to about ARGV[2] entries
-- KEYS[2]  what the call answered   string  lives ARGV[3]
-- KEYS[3…] one per limit            hash    spent, carry, at, held; reset: when it was last reset (ms); its life is left
--                                           as it is: it outlasts all that may still be given back
-- ARGV[1]  the record: a JSON object without its closing brace, to which `before` is added: [used, held] of each limit
-- ARGV[2]  about how many records are kept
-- ARGV[3]  how long it is known that the call was made (ms)
-- then four for each limit, in the order of KEYS[3…]:
--   amount, period             the tank: `amount` comes back every `period` ms
--   from, until                its calendar window (ms of the store's clock), 0 and 0 for none
--
-- Returns {verdict, time of the store (ms), then spent, carry, held for each limit as it was before, and last the id of
-- the record in the stream}; verdicts:
--   'reset', 'moved' (not within a calendar window; nothing is changed, and the time is all that comes with it).

-- include _level

local FIRST_LIMIT, FIRST_ARGUMENT, PER_LIMIT = 3, 4, 4
local FIRST_TOLD, PER_TOLD = 3, 3

redis.call('XLEN', KEYS[1]) -- fails while nothing has been changed, should another have put something else there
local answered = redis.call('GET', KEYS[2])
if answered then
  local told = {}
  for word in string.gmatch(answered, '%S+') do
    told[#told + 1] = tonumber(word) or word
  end
  return told
end

local limits = {}
for index = FIRST_LIMIT, #KEYS do
  local base = FIRST_ARGUMENT + (index - FIRST_LIMIT) * PER_LIMIT
  local ends = tonumber(ARGV[base + 3])
  if ends > 0 and (now < tonumber(ARGV[base + 2]) or now >= ends) then
    return { 'moved', now }
  end
  limits[#limits + 1] = load(KEYS[index], tonumber(ARGV[base]), tonumber(ARGV[base + 1]))
end

local told = reply('reset', limits)
local before = {}
for index = FIRST_TOLD, #told, PER_TOLD do
  before[#before + 1] = '[' .. text(told[index]) .. ',' .. text(told[index + 2]) .. ']'
end
local record = ARGV[1] .. ',"before":[' .. table.concat(before, ',') .. ']}'
local entry = redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'record', record)
for _, level in ipairs(limits) do
  if redis.call('EXISTS', level.key) == 1 then
    redis.call('HSET', level.key, 'spent', '0', 'carry', '0', 'at', text(now), 'reset', text(now))
  end
end
told[#told + 1] = entry
local words = {}
for index, value in ipairs(told) do
  words[index] = type(value) == 'number' and text(value) or value
end
redis.call('SET', KEYS[2], table.concat(words, ' '), 'PX', ARGV[3])
return told
