--[[
  Sets what requests take in their logs. A request that a log does not have stays without it.

  Keys:
    KEYS[i] for each log of each request:
      log (ZSET): the log; the score of an entry is its timestamp in microseconds
      costs (HASH): if the log is a budget, as in admit.lua

  Arguments:
    ARGV[1...] for each request:
      member (16 bytes): the UUID of the request
      logs (count): how many of its logs follow, in the order of the KEYS
      for each log:
        cost (places): what the request takes from now on; 0 cancels it
        kept_us (microseconds): how long the log keeps its entries
        is_budget (0 or 1): whether it is a budget; otherwise a request that stays is one place

  Reply: as in admit.lua
    REPLY[1] numbers (bytes): each a big-endian double of 8 bytes
      for each request:
        live (logs): how many logs had the request; -1 if Redis can't use a log, which concerns no
          other request
    REPLY[2...] for each request that Redis could not serve:
      error (text): why

  Cost: O(log n) for each log, n is the number of its entries.
  TTL: unchanged.
]]
local call, try = redis.call, redis.pcall
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

-- Changes what an entry of a budget takes, and the sums that have it: of all, and of the windows that it is in.
local function change(costs, member, at_us, by, cost)
  local packed = call('HGET', costs, '')
  local sums = { struct.unpack('>' .. string.rep('d', #packed / 8), packed) }
  sums[#sums] = nil
  for i = 1, #sums do
    if i == 1 or i % 3 == 1 and tonumber(at_us) > sums[i + 1] then
      sums[i] = sums[i] + by
    end
  end
  call('HSET', costs, '', struct.pack('>' .. string.rep('d', #sums), unpack(sums)))
  if cost == 0 then
    call('HDEL', costs, member)
  else
    call('HSET', costs, member, cost)
  end
end

local numbers, n, errors, key, arg = {}, 0, nil, 1, 1
while arg <= #ARGV do
  local member, logs, live = ARGV[arg], tonumber(ARGV[arg + 1]), 0
  arg = arg + 2
  for _ = 1, logs do
    local log, costs, cost, kept_us, is_budget =
      KEYS[key], KEYS[key + 1], tonumber(ARGV[arg]), ARGV[arg + 1], ARGV[arg + 2] == '1'
    key, arg = key + (is_budget and 2 or 1), arg + 3
    local at_us = live >= 0 and try('ZSCORE', log, member)
    local held = is_budget and at_us and try('HGET', costs, member)
    local error = type(at_us) == 'table' and at_us.err or type(held) == 'table' and held.err
    if error then
      live, errors = -1, errors or {}
      errors[#errors + 1] = error
    elseif at_us then
      local is_live = at_us + kept_us > now_us
      live = live + (is_live and 1 or 0)
      if held and (is_live or cost == 0) then
        change(costs, member, at_us, cost - held, cost)
      end
      if cost == 0 then
        call('ZREM', log, member)
      end
    end
  end
  n = n + 1
  numbers[n] = live
end

local packed = struct.pack('>' .. string.rep('d', n), unpack(numbers, 1, n))
if errors then
  return { packed, unpack(errors) }
end
return packed
