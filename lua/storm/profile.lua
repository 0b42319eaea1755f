-- Purpose: count the messages of a group step by step over the window.
-- KEYS[1]: the log of the group, as record.lua keeps it.
-- KEYS[2]: the state of the group, as record.lua keeps it.
-- ARGV[1]: window_us: how long a message counts.
-- ARGV[2]: step_us: how long a step is.
-- Reply: how many messages came in each step, the oldest first. The last step ends now; the first is shorter if the window is no whole number of steps.
-- Cost: O(s log n), s the steps and n the entries of the log.
-- TTL: of both as it is.

local call, log = redis.call, KEYS[1]
local window_us, step_us = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2] + (call('HGET', KEYS[2], 'offset_us') or 0)
local newest_us = call('ZRANGE', log, -1, -1, 'WITHSCORES')[2]
now_us = math.max(now_us, tonumber(newest_us or 0))

local steps = math.ceil(window_us / step_us)
local counts = {}
for s = 1, steps do
  local age_us = (steps - s) * step_us
  local oldest_us = now_us - math.min(age_us + step_us, window_us) + 1
  counts[s] = call('ZCOUNT', log, oldest_us, now_us - age_us)
end
return counts
