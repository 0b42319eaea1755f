--[[
  Counts the messages of a group in each step of the window.

  Keys:
    KEYS[1] log (ZSET): the log of the group, as record.lua keeps it
    KEYS[2] state (HASH): the state of the group, as record.lua keeps it

  Arguments:
    ARGV[1] window_us (microseconds): how long a message counts
    ARGV[2] step_us (microseconds): the length of a step

  Reply:
    REPLY[1...] for each step:
      count (messages): how many came in the step

    The oldest step is first. The last one ends now. The first is shorter if the window is not a
    whole number of steps.

  Cost: O(s log n), s is the number of steps and n the number of entries in the log.
  TTL: unchanged.
]]
local call, log, state = redis.call, KEYS[1], KEYS[2]
local window_us, step_us = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2] + (call('HGET', state, 'offset_us') or 0)

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
