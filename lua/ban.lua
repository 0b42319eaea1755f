-- Purpose: impose a ban on a key, unless a longer one stands, and say which one does.
-- KEYS[1]: standing: how the key stands with a policy's penalty, a hash.
-- ARGV[1]: duration_us: how long the ban is to last from now; 0 to only look.
-- ARGV[2]: reason: why, any bytes.
-- ARGV[3]: decay_us: how long a rung of the penalty's ladder is remembered.
-- Reply[1]: how long the ban that stands goes on in microseconds, 0 if there is none.
-- Reply[2]: 1 if it is the one that was to be imposed, else 0.
-- Reply[3]: its reason, a bulk string, empty if there is none.
-- Cost: O(1).
-- TTL: until the standing matters no longer, and a second; never shortened.

local call, key = redis.call, KEYS[1]
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local known = call('HMGET', key, 'until', 'level', 'reason')
local until_us, level, reason = tonumber(known[1] or 0), tonumber(known[2] or 0), known[3] or ''
local wanted_us = now_us + ARGV[1]
if tonumber(ARGV[1]) > 0 and wanted_us > until_us then
  call('HSET', key, 'until', wanted_us, 'reason', ARGV[2])
  local ttl_ms = math.ceil((ARGV[1] + level * ARGV[3]) / 1000) + 1000
  if call('PTTL', key) < ttl_ms then
    call('PEXPIRE', key, ttl_ms)
  end
  return { tonumber(ARGV[1]), 1, ARGV[2] }
end
if until_us <= now_us then
  return { 0, 0, '' }
end
return { until_us - now_us, 0, reason }
