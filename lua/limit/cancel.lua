--[[
  Removes requests from their logs, and no others.

  Keys:
    KEYS[i] for each log of each request:
      log (ZSET): the log; the score of an entry is its timestamp in microseconds

  Arguments:
    ARGV[1...] for each request:
      member (16 bytes): the UUID of the request
      cost (places): how many places the request took
      logs (count): how many of the KEYS, in their order, are its logs
      for each log:
        horizon_us (microseconds): the longest window of its quotas

  Reply:
    REPLY[i] for each request:
      live (logs): how many logs had the request in their longest window; the text of the error if
        Redis can't use a log, which concerns no other request

  Cost: O(log n) for each place, n is the number of entries in the log.
  TTL: unchanged.
]]
local call = redis.call
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

local function cancel(member, cost, first_log, first_horizon, logs)
  local live = 0
  for k = 0, logs - 1 do
    local log, horizon_us = KEYS[first_log + k], ARGV[first_horizon + k]
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
end

local replies, log, arg = {}, 1, 1
while arg <= #ARGV do
  local member, cost, logs = ARGV[arg], tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local is_done, reply = pcall(cancel, member, cost, log, arg + 3, logs)
  -- An error is a table from version 7.0 on, and a string before.
  replies[#replies + 1] = is_done and reply or reply.err or reply
  log, arg = log + logs, arg + 3 + logs
end
return replies
