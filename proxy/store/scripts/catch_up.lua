-- Read what is known of purges and fingerprints, and let the epoch grow where the store has lost what it knew.
--
-- Promises: changes nothing, but lets it live on, unless there is no epoch, or one below what the caller has heard of:
-- then purges may have been lost, and all that is older than the new epoch is purged. Idempotent: a repeated call finds
-- it done. Integers below 2^53 only.
--
-- KEYS[1]  cache                    hash    epoch; purged:… -> the epoch of the purge; retired:… -> the epoch in which it
--                                           was retired; at most some thousands of fields; lives LIFE, see `keep`
-- ARGV[1]  the highest epoch that the caller has heard of; 0 for none
--
-- Returns {1 if all that is older was purged, else 0; then the fields of the hash, each with its value}.

-- include _epoch

local known = tonumber(ARGV[1])
local epoch = read_epoch(KEYS[1])
local is_lost = not epoch or epoch < known
if is_lost then
  redis.call('HSET', KEYS[1], 'purged:all', text(grow(KEYS[1], known + 1)))
end
keep(KEYS[1])
local told = redis.call('HGETALL', KEYS[1])
table.insert(told, 1, is_lost and 1 or 0)
return told
