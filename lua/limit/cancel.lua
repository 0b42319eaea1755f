-- Purpose: remove one request from its logs, and no other.
-- KEYS[i]: the i-th log, a ZSET of entries scored by timestamp.
-- ARGV[1]: member: the request's UUID, 16 bytes.
-- ARGV[2]: cost: how many places the request took.
-- ARGV[3...]: for each log: horizon_us: how long its longest window is.
-- Reply: from how many logs the request was removed before it had left their longest window.
-- Cost: O(log n) an entry, n the entries of the log.
-- TTL: unchanged.

local call = redis.call
local member, cost = ARGV[1], tonumber(ARGV[2])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

local live = 0
for k = 1, #KEYS do
  local at_us = call('ZSCORE', KEYS[k], member)
  if at_us then
    call('ZREM', KEYS[k], member)
    for n = 2, cost do
      call('ZREM', KEYS[k], member .. n)
    end
    if at_us + ARGV[2 + k] > now_us then
      live = live + 1
    end
  end
end
return live
