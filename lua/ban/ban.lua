-- Purpose: impose a ban on a key, unless a longer one stands or it was lifted since, and say which one does.
-- KEYS[1]: standing: how the key stands with a policy's penalty, a hash.
-- KEYS[2]: when the key's ban was last lifted, as lift.lua leaves it.
-- ARGV[1]: duration_us: how long the ban is to last from now; 0 to only look.
-- ARGV[2]: reason: why, any bytes.
-- ARGV[3]: decay_us: how long a rung of the penalty's ladder is remembered; 0 if there is no penalty.
-- ARGV[4]: seen_at_us: when the ban was last seen to stand, in microseconds of the Unix epoch; 0 if that is not known.
-- ARGV[5]: seen_us: how long ago it was imposed elsewhere, if seen_at_us is not known; 0 for one that is imposed now.
-- Reply[1]: how long the ban that stands goes on in microseconds, 0 if there is none.
-- Reply[2]: 1 if it is the one that was to be imposed, -1 if that was lifted since, else 0.
-- Reply[3]: its reason, a bulk string, empty if there is none.
-- Reply[4]: now_us: when the reply was given, in microseconds of the Unix epoch.
-- Cost: O(1).
-- TTL: until the standing matters no longer, and a second; never shortened.

local call, key = redis.call, KEYS[1]
local duration_us, decay_us = tonumber(ARGV[1]), tonumber(ARGV[3])
local seen_at_us, seen_us = tonumber(ARGV[4]), tonumber(ARGV[5])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local known = call('HMGET', key, 'until', 'level', 'reason')
local until_us, level, reason = tonumber(known[1] or 0), tonumber(known[2] or 0), known[3] or ''

local lifted = 0
if seen_at_us == 0 and seen_us > 0 then
  seen_at_us = now_us - seen_us
end
if seen_at_us > 0 and tonumber(call('GET', KEYS[2]) or -1) >= seen_at_us then
  duration_us, lifted = 0, -1
end
local wanted_us = now_us + duration_us
if duration_us > 0 and wanted_us > until_us then
  if decay_us > 0 and now_us > until_us then
    -- What the key has come down the ladder since its last ban stays so.
    level = math.max(0, level - math.floor((now_us - until_us) / decay_us))
  end
  call('HSET', key, 'until', wanted_us, 'level', level, 'reason', ARGV[2])
  local ttl_ms = math.ceil((duration_us + level * decay_us) / 1000) + 1000
  if call('PTTL', key) < ttl_ms then
    call('PEXPIRE', key, ttl_ms)
  end
  return { duration_us, 1, ARGV[2], now_us }
end
if until_us <= now_us then
  return { 0, lifted, '', now_us }
end
return { until_us - now_us, lifted, reason, now_us }
