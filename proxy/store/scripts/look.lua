-- Read how limits stand, and take nothing.
--
-- Promises: changes nothing, no life time either; looks at no more than it is asked for. Integers below 2^53 only.
--
-- KEYS[1…] one per limit            hash    spent, carry, at, held; may be absent: nothing is taken from it; its life is
--                                           left as it is
-- ARGV     four for each limit, in the order of KEYS:
--   amount, period             the tank: `amount` comes back every `period` ms
--   from, until                its calendar window (ms of the store's clock), 0 and 0 for none
--
-- Returns {verdict, time of the store (ms), then spent, carry, held for each limit as it is now}; verdicts:
--   'seen', 'moved' (not within a calendar window; without levels).

-- include _level

local PER_LIMIT = 4

local limits = {}
for index = 1, #KEYS do
  local base = (index - 1) * PER_LIMIT
  local ends = tonumber(ARGV[base + 4])
  if ends > 0 and (now < tonumber(ARGV[base + 3]) or now >= ends) then
    return { 'moved', now }
  end
  limits[index] = load(KEYS[index], tonumber(ARGV[base + 1]), tonumber(ARGV[base + 2]))
end
return reply('seen', limits)
