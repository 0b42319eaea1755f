-- Purpose: empty logs, and leave a mark that keeps other processes from writing back what was in them.
-- KEYS[i]: for each log, the log, a ZSET, and then when it was last reset, a string.
-- ARGV[i]: for each log: horizon_us: how long its longest window is.
-- Reply: 1.
-- Cost: O(n), n the entries of the logs.
-- TTL: of the mark, that of the log or its longest window and 999 ms, whichever is longer; then nothing from before the reset is in any window.

local call = redis.call
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
for k = 1, #ARGV do
  local log, mark = KEYS[2 * k - 1], KEYS[2 * k]
  local ttl_ms = math.max(call('PTTL', log), math.ceil(ARGV[k] / 1000) + 999)
  call('DEL', log)
  call('SET', mark, now_us, 'PX', ttl_ms)
end
return 1
