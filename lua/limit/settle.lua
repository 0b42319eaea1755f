--[[
  Sets how many places requests take in their logs. A request without a place stays without one.

  Keys:
    KEYS[i] for each log of each request:
      log (ZSET): the log; the score of an entry is its timestamp in microseconds

  Arguments:
    ARGV[1...] for each request:
      member (16 bytes): the UUID of the request
      cost (places): how many places the request takes from now on; 0 cancels it
      logs (count): how many of the KEYS, in their order, are its logs
      for each log:
        horizon_us (microseconds): the longest window of its quotas

  Reply:
    REPLY[1] numbers (bytes): each a big-endian double of 8 bytes
      for each request:
        live (logs): how many logs had the request in their longest window; -1 if Redis can't use a
          log, which concerns no other request
    REPLY[2...] for each request that Redis could not serve:
      error (text): why

  Cost: O(log n) for each place that is added or removed, n is the number of entries in the log.
  TTL: if the newest entry is removed, a log expires as much sooner as the next one is older.
]]
local call = redis.call
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

-- After the entries of an instant were removed: keeps the log for as long as before after its
-- newest entry, see admit_all.lua.
local function expire_sooner(log, removed_us)
  local newest, left_ms = call('ZRANGE', log, -1, -1, 'WITHSCORES'), call('PTTL', log)
  if newest[1] and tonumber(newest[2]) < 0 then
    -- Only marks are left.
    call('DEL', log)
  elseif newest[1] and left_ms ~= -1 then
    local sooner_ms = math.floor(removed_us / 1000) - math.floor(newest[2] / 1000)
    if sooner_ms > 0 then
      call('PEXPIRE', log, left_ms - sooner_ms)
    end
  end
end

local function settle(member, cost, first_log, first_horizon, logs)
  -- The entries of a request are the UUID, and the UUID with each number from 2 on, without a gap.
  local function entry(n)
    return n == 1 and member or member .. n
  end

  local live = 0
  for k = 0, logs - 1 do
    local log, horizon_us = KEYS[first_log + k], ARGV[first_horizon + k]
    local at_us = call('ZSCORE', log, member)
    local is_live = at_us and at_us + horizon_us > now_us
    if is_live then
      live = live + 1
    end
    if is_live or at_us and cost == 0 then
      local n = cost + 1
      while call('ZREM', log, entry(n)) == 1 do
        n = n + 1
      end
      -- The log has the first entry, so this ends there at the latest.
      n = cost
      while n > 1 and call('ZADD', log, 'NX', at_us, entry(n)) == 1 do
        n = n - 1
      end
      if cost == 0 then
        expire_sooner(log, at_us)
      end
    end
  end
  return live
end

local numbers, n, errors, log, arg = {}, 0, {}, 1, 1
while arg <= #ARGV do
  local member, cost, logs = ARGV[arg], tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local is_done, reply = pcall(settle, member, cost, log, arg + 3, logs)
  if not is_done then
    -- An error is a table from version 7.0 on, and a string before.
    errors[#errors + 1], reply = reply.err or reply, -1
  end
  n, log, arg = n + 1, log + logs, arg + 3 + logs
  numbers[n] = reply
end
local reply = { struct.pack('>' .. string.rep('d', n), unpack(numbers)), unpack(errors) }
return reply
