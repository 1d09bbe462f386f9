-- Take a lease for its owner, or prolong it.
--
-- Promises: the lease of another owner is not touched. Idempotent: asking again prolongs.
--
-- KEYS[1]  string, the lease: holds its owner's name; lives ARGV[2] ms from the last time it was held
-- ARGV[1]  name of the owner who asks
-- ARGV[2]  life time of the lease, ms
--
-- Returns 1 if the asking owner holds the lease now, 0 if another one does.

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
