-- Find a stored answer; where there is none, take the lease of its fetch for the one who asks.
--
-- Promises: changes nothing where there is an answer, nor the lease of another owner. Idempotent: asking again prolongs.
--
-- KEYS[1]  string, the stored answer
-- KEYS[2]  string, the lease of its fetch (see hold_lease.lua); lives ARGV[2] ms from the last time it was held
-- ARGV[1]  name of the owner who asks
-- ARGV[2]  life time of the lease, ms
--
-- Returns the answer; or 1 if the asking owner holds the lease now, 0 if another one does.

local answer = redis.call('GET', KEYS[1])
if answer then
  return answer
end
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return 1
