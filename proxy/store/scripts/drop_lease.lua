-- Give a lease back.
--
-- Promises: the lease of another owner is not touched. Idempotent: giving back twice changes nothing.
--
-- KEYS[1]  string, the lease (see hold_lease.lua); removed
-- ARGV[1]  name of the owner who gives it back
--
-- Returns 1 if the lease was given back, 0 if it was another's or nobody's.

local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
