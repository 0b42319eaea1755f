-- Purpose: forget a key's ban, strikes and rungs, and leave a mark that keeps other processes from imposing it again.
-- KEYS[1]: standing: how the key stands with a policy's penalty, a hash.
-- KEYS[2]: its strikes, a ZSET.
-- KEYS[3]: when the key's ban was last lifted, a string.
-- ARGV[1]: longest_us: how long a ban of the policy can be.
-- Reply: how many of the first two there were.
-- Cost: O(n), n the strikes.
-- TTL: of the mark, that of the standing or the longest ban and a second, whichever is longer.

local call = redis.call
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local ttl_ms = math.max(call('PTTL', KEYS[1]), math.ceil(ARGV[1] / 1000) + 1000)
local removed = call('DEL', KEYS[1], KEYS[2])
call('SET', KEYS[3], now_us, 'PX', ttl_ms)
return removed
