--[[
  Sets what requests take in their logs. A request that a log does not have stays without it.

  Keys:
    KEYS[i] for each log of each request:
      log (ZSET): the log, as in admit.lua

  Arguments:
    ARGV[1] more (count): how many keys follow that are not in KEYS, as in admit.lua
    ARGV[2...] these keys, and then, for each request:
      logs (count): how many of its logs follow, in the order of the KEYS
      for each log:
        entry (16 or 24 bytes): the entry of the request, as in admit.lua; 24 bytes if the log is a budget
        cost (places): what the request takes from now on; 0 cancels it. In a log that is no budget, a request
          that stays is one place
        kept_us (microseconds): how long the log keeps its entries

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

-- Changes what an entry of a budget takes, and the sums that have it.
local function change(log, entry, at, cost)
  local first = call('ZRANGE', log, 0, 0, 'WITHSCORES')
  local name, sum, initial, settled = first[1], -1 - first[2], struct.unpack('>d', entry, 17), nil
  local held = initial
  for _, other in ipairs(call('ZRANGE', log, at, at, 'BYSCORE')) do
    if #other == 32 and string.sub(other, 1, 24) == entry then
      settled, held = other, held + struct.unpack('>d', other, 25)
    end
  end
  local windows = { struct.unpack('>' .. string.rep('d', #name / 8), name) }
  windows[#windows] = nil
  for i = 1, #windows, 3 do
    if tonumber(at) <= windows[i + 2] then
      windows[i + 1] = windows[i + 1] + cost - held
    end
  end
  sum = sum + cost - held
  call('ZREM', log, name, settled or name, cost == 0 and entry or name)
  if cost > 0 and cost ~= initial then
    call('ZADD', log, at, entry .. struct.pack('>d', cost - initial))
  end
  if sum > 0 then
    call('ZADD', log, -1 - sum, struct.pack('>' .. string.rep('d', #windows), unpack(windows)))
  end
end

local more, declared = tonumber(ARGV[1]), #KEYS
for i = 1, more do
  KEYS[declared + i] = ARGV[1 + i]
end

local numbers, n, errors, key, arg = {}, 0, nil, 1, 2 + more
while arg <= #ARGV do
  local logs, live = tonumber(ARGV[arg]), 0
  arg = arg + 1
  for _ = 1, logs do
    local log, entry, cost, kept_us = KEYS[key], ARGV[arg], tonumber(ARGV[arg + 1]), ARGV[arg + 2]
    key, arg = key + 1, arg + 3
    local at = live >= 0 and try('ZSCORE', log, entry)
    if type(at) == 'table' then
      live, errors = -1, errors or {}
      errors[#errors + 1] = at.err
    elseif at then
      local is_live = at + kept_us > now_us
      live = live + (is_live and 1 or 0)
      if #entry == 24 and (is_live or cost == 0) then
        change(log, entry, at, cost)
      elseif cost == 0 then
        call('ZREM', log, entry)
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
