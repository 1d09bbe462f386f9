-- Find requests whose lease is over: their owner died, or could not reach the store.
--
-- Promises: changes nothing; looks at no more than it is asked for.
--
-- KEYS[1]  leases                   zset    request id by the end of its lease (ms)
-- ARGV[1]  how many at most
--
-- Returns the ids, longest over first.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'LIMIT', 0, ARGV[1])
