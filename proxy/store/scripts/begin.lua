-- Tell since when the store has this set of data, and note it for data that are new.
--
-- Promises: once noted it stays; no record that is booked into these data is older. Data that are there already, and of
-- which nobody noted when they began, are taken for older than any record. Looks at no more than its own keys.
--
-- KEYS[1]  data                     hash    since (ms of the store's clock), and for each contributor the `since` of the
--                                           data to which its records are added; lives ARGV[1] from the last call
-- KEYS[2]  outbox                   stream  only looked at; none of its records is removed before this was called
-- ARGV[1]  life of the note (ms)
-- ARGV[2]  contributor that is asked for
--
-- Returns {since (ms), time of the store (ms), the `since` of the data that this contributor added to, or nothing}.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Records that have been removed were counted, nobody knows since when. Where none has been, the first is the oldest.
local function beginning()
  if redis.call('EXISTS', KEYS[2]) == 0 then
    return string.format('%.0f', now)
  end
  local facts, stream = redis.call('XINFO', 'STREAM', KEYS[2]), {}
  for index = 1, #facts, 2 do
    stream[facts[index]] = facts[index + 1]
  end
  if stream['length'] == 0 or stream['length'] ~= stream['entries-added'] then
    return '0'
  end
  return string.match(stream['first-entry'][1], '^%d+')
end

if redis.call('HEXISTS', KEYS[1], 'since') == 0 then
  redis.call('HSET', KEYS[1], 'since', beginning())
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
local noted = redis.call('HMGET', KEYS[1], 'since', ARGV[2])
return { tonumber(noted[1]), now, noted[2] }
