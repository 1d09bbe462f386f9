-- Keep the holds of live requests: their leases, their own lives, and the lives of the limits they hold room in.
--
-- Promises: extends only what still is held, and shortens no life. The work is bounded by the call's own arguments.
--
-- KEYS[1]           leases          zset    request id by the end of its lease (ms); lives ARGV[2] from its last change
-- KEYS[2…1+n]       n holds         hash    live ARGV[2] from now
-- KEYS[2+n…]        limits          hash    live ARGV[2] from now, at least
-- ARGV[1]           lease (ms)
-- ARGV[2]           life of a hold, and of a limit's key while room is held in it (ms)
-- ARGV[3]           n
-- ARGV[4…3+n]       the requests' ids, in the order of their holds
--
-- Returns {how many are held, time of the store (ms)}.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local count, kept = tonumber(ARGV[3]), 0

for index = 1, count do
  if redis.call('HGET', KEYS[1 + index], 'state') == 'held' then
    redis.call('PEXPIRE', KEYS[1 + index], ARGV[2])
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[1])), ARGV[3 + index])
    kept = kept + 1
  end
end
if kept > 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
for index = 2 + count, #KEYS do
  redis.call('PEXPIRE', KEYS[index], ARGV[2], 'GT')
end
return { kept, now }
