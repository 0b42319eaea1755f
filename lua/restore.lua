-- Purpose: record a request that was admitted elsewhere, whatever the quotas say.
-- KEYS[i]: the log of the i-th window, a ZSET of entries scored by stamp.
-- ARGV[1]: member: the request's UUID, 16 bytes.
-- ARGV[2]: cost: how many places the request takes.
-- ARGV[3]: age_us: how long ago it was admitted.
-- ARGV[4...]: for each key: horizon_us (its longest window).
-- Reply: how many entries were added; one that is there already has its stamp raised, never lowered.
-- Cost: O(log n) an entry, n the entries of the log.
-- TTL: what is left of the longest window of the key, and 999 ms, unless it has a longer one.

local call = redis.call
local member, cost, age_us = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = call('TIME')
local at_us = time[1] * 1000000 + time[2] - age_us

local added = 0
for k = 1, #KEYS do
  local left_us = ARGV[3 + k] - age_us
  if left_us > 0 then
    for n = 1, cost do
      added = added + call('ZADD', KEYS[k], 'GT', at_us, n == 1 and member or member .. n)
    end
    local ttl_ms = math.ceil(left_us / 1000) + 999
    if call('PTTL', KEYS[k]) < ttl_ms then
      call('PEXPIRE', KEYS[k], ttl_ms)
    end
  end
end
return added
