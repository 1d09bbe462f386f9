-- Purge cached answers: let the epoch grow, note what is purged by it, and leave an audit record of it.
--
-- Promises: checks everything, then changes everything: purge and record, or neither. Answers that were fetched in an
-- earlier epoch are stale from now on if they are concerned; what is purged stays purged. Of more than ARGV[4] fields
-- the oldest become part of `purged:all`, which purges what is older than they are, concerned or not. Idempotent by
-- call: a repeated call answers as the first one did and changes nothing. Integers below 2^53 only.
--
-- KEYS[1]  cache                    hash    epoch; purged:… -> the epoch of the purge; lives LIFE, see `keep`
-- KEYS[2]  audit tail               stream  gets the record; has no life time, it is trimmed to about ARGV[2] entries
-- KEYS[3]  what the call answered   string  lives ARGV[3]
-- ARGV[1]  the record (JSON, not read here)
-- ARGV[2]  about how many records are kept
-- ARGV[3]  how long it is known that the call was made (ms)
-- ARGV[4]  how many fields of purges are kept
-- ARGV[5…] the fields that are purged: 'purged:all', which takes the place of all others, 'purged:model:<name>', …
--
-- Returns {the epoch of the purge, the id of the record in the stream}.

-- include _epoch

local FIRST_FIELD = 5
local ALL = 'purged:all'

redis.call('XLEN', KEYS[2]) -- fails while nothing has been changed, should another have put something else there
local answered = redis.call('GET', KEYS[3])
if answered then
  local epoch, record = string.match(answered, '^(%d+) (%S+)$')
  return { tonumber(epoch), record }
end

-- Keep so many purges: what is older than the last one that goes is purged for all.
local function forget(most)
  local kept, fields = {}, redis.call('HGETALL', KEYS[1])
  for index = 1, #fields, 2 do
    if string.find(fields[index], '^purged:') and fields[index] ~= ALL then
      kept[#kept + 1] = { name = fields[index], epoch = tonumber(fields[index + 1]) or 0 }
    end
  end
  table.sort(kept, function(one, other) return one.epoch > other.epoch end)
  local all = tonumber(redis.call('HGET', KEYS[1], ALL) or 0)
  for index = #kept, most + 1, -1 do
    redis.call('HDEL', KEYS[1], kept[index].name)
    all = math.max(all, kept[index].epoch)
  end
  if #kept > most then
    redis.call('HSET', KEYS[1], ALL, text(all))
  end
end

local epoch = grow(KEYS[1], 0)
local most = tonumber(ARGV[4])
for index = FIRST_FIELD, #ARGV do
  redis.call('HSET', KEYS[1], ARGV[index], text(epoch))
  if ARGV[index] == ALL then
    most = 0
  end
end
forget(most)
local record = redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], '*', 'record', ARGV[1])
redis.call('SET', KEYS[3], text(epoch) .. ' ' .. record, 'PX', ARGV[3])
return { epoch, record }
