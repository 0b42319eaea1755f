--[[
  Removes one request from its logs, and no other.

  Keys:
    KEYS[i] for each log:
      log (ZSET): the log; the score of an entry is its timestamp in microseconds

  Arguments:
    ARGV[1] member (16 bytes): the UUID of the request
    ARGV[2] cost (places): how many places the request took
    ARGV[3...] for each log:
      horizon_us (microseconds): the longest window of its quotas

  Reply:
    REPLY live (logs): how many logs had the request in their longest window

  Cost: O(log n) for each place, n is the number of entries in the log.
  TTL: unchanged.
]]
local call = redis.call
local member, cost = ARGV[1], tonumber(ARGV[2])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

local live = 0
for k = 1, #KEYS do
  local log, horizon_us = KEYS[k], ARGV[2 + k]
  local at_us = call('ZSCORE', log, member)
  if at_us then
    call('ZREM', log, member)
    for n = 2, cost do
      call('ZREM', log, member .. n)
    end
    if at_us + horizon_us > now_us then
      live = live + 1
    end
  end
end
return live
