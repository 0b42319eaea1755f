-- Purpose: record what a process knows of one log, whatever the quotas say, unless the log was reset since.
-- KEYS[1]: the log, a ZSET of entries scored by timestamp.
-- KEYS[2]: when the log was last reset, as reset.lua leaves it.
-- ARGV[1]: horizon_us: how long the log's longest window is.
-- ARGV[2...]: for each admission: member (the request's UUID, 16 bytes), cost (how many places it takes), age_us (how long ago it was admitted), and mode: "GT" to raise the timestamp of one that is there already, "NX" to leave it.
-- Reply[1]: how many entries were added.
-- Reply[2]: how long ago the log was last reset in microseconds, -1 if that matters no longer.
-- Cost: O(log n) an entry, n the entries of the log.
-- TTL: what is left of the longest window, and 999 ms, unless the log has a longer one.

local call, log, horizon_us = redis.call, KEYS[1], tonumber(ARGV[1])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local reset_us = tonumber(call('GET', KEYS[2]) or -1)
if reset_us > now_us then
  -- The clock has stepped back: what is older than the reset can't be told, and all of it counts.
  reset_us = -1
end
call('ZREMRANGEBYSCORE', log, '-inf', now_us - horizon_us)

local added, longest_left_us = 0, 0
for a = 2, #ARGV, 4 do
  local member, cost, age_us, mode = ARGV[a], tonumber(ARGV[a + 1]), ARGV[a + 2], ARGV[a + 3]
  local at_us, left_us = now_us - age_us, horizon_us - age_us
  if left_us > 0 and at_us >= reset_us then
    for n = 1, cost do
      added = added + call('ZADD', log, mode, at_us, n == 1 and member or member .. n)
    end
    longest_left_us = math.max(longest_left_us, left_us)
  end
end
if longest_left_us > 0 then
  local ttl_ms = math.ceil(longest_left_us / 1000) + 999
  if call('PTTL', log) < ttl_ms then
    call('PEXPIRE', log, ttl_ms)
  end
end
return { added, reset_us < 0 and -1 or now_us - reset_us }
