--[[
  Sets how many places requests take in their logs. A request without a place stays without one.

  Keys:
    KEYS[i] for each log of each request:
      log (ZSET): the log; the score of an entry is its timestamp in microseconds

  Arguments:
    ARGV[1...] for each request:
      member (16 bytes): the UUID of the request
      logs (count): how many of the KEYS, in their order, are its logs
      for each log:
        cost (places): how many places the request takes from now on; 0 cancels it
        kept_us (microseconds): how long it keeps its entries

  Reply: as in admit.lua
    REPLY[1] numbers (bytes): each a big-endian double of 8 bytes
      for each request:
        live (logs): how many logs had the request; -1 if Redis can't use a log, which concerns no
          other request
    REPLY[2...] for each request that Redis could not serve:
      error (text): why

  Cost: O(log n) for each place that is added or removed, n is the number of entries in the log.
  TTL: unchanged.
]]
local call, try = redis.call, redis.pcall
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

local numbers, n, errors, key, arg = {}, 0, nil, 1, 1
while arg <= #ARGV do
  local member, logs = ARGV[arg], tonumber(ARGV[arg + 1])
  local live = 0
  for k = 1, logs do
    local log, cost, kept_us = KEYS[key + k - 1], tonumber(ARGV[arg + 2 * k]), ARGV[arg + 2 * k + 1]
    local at_us = try('ZSCORE', log, member)
    if type(at_us) == 'table' then
      live, errors = -1, errors or {}
      errors[#errors + 1] = at_us.err
      break
    end
    local is_live = at_us and at_us + kept_us > now_us
    if is_live then
      live = live + 1
    end
    if is_live or at_us and cost == 0 then
      -- The entries are the UUID, and the UUID with each number from 2 on, without a gap.
      local place = cost + 1
      while call('ZREM', log, place == 1 and member or member .. place) == 1 do
        place = place + 1
      end
      place = cost
      while place > 1 and call('ZADD', log, 'NX', at_us, member .. place) == 1 do
        place = place - 1
      end
    end
  end
  n, key, arg = n + 1, key + logs, arg + 2 + 2 * logs
  numbers[n] = live
end

local packed = struct.pack('>' .. string.rep('d', n), unpack(numbers, 1, n))
if errors then
  return { packed, unpack(errors) }
end
return packed
