--[[
  Makes logs agree with what a process knows of its requests, also above the quotas: after an outage, or
  because a request was cancelled or settled. Leaves out what is older than the last reset of a log.

  Keys:
    KEYS[i] for each log:
      log (ZSET): the log, as in admit.lua
      mark (string): when the log was last reset, as reset.lua leaves it; only if a request is not kept. A node of a
        Cluster may lack it while its slot is on its way: then all requests count

  Arguments:
    ARGV[1] more (count): how many keys follow that are not in KEYS, as in admit.lua
    ARGV[2...] these keys, and then:
      delay_us (microseconds): how long the call may have been under way
      for each log:
        retention_us (microseconds): how long it keeps its entries
        counts (0 to 3): what it counts, as in admit.lua
        marks (0 or 1): how many marks it has among the keys
        requests (count): how many follow
        for each request:
          entry (16 or 24 bytes): the entry of the request, as in admit.lua; 24 bytes if the log is a budget
          places (count): how many places it takes, 1 unless the log is a budget; 0 if it was cancelled
          age_us (microseconds): how long ago it was admitted
          origin (word): here, if the process admitted it without Redis; redis, if Redis admitted it
            and may have lost it; kept, if Redis has it unless it was removed

  Reply: as in admit.lua
    REPLY[1] numbers (bytes): each a big-endian double of 8 bytes
      for each log:
        had (requests): how many the log had, without those that it keeps no longer; -1 if Redis can't use the
          log, which concerns no other log: then the rest is missing
        reset_age_us (microseconds): how long ago the log was reset; -1 if no reset matters
    REPLY[2...] for each log that Redis could not use:
      error (text): why

  Cost: O(log n) for each place, n is the number of entries in the log.
  TTL: of a log as in admit.lua. It never becomes shorter.
]]
local call = redis.call

-- Changes the sums of what has left the windows of a budget.
local function count(windows, at_us, places)
  for i = 1, #windows, 3 do
    if at_us <= windows[i + 2] then
      windows[i + 1] = windows[i + 1] + places
    end
  end
end

local more, declared = tonumber(ARGV[1]), #KEYS
for i = 1, more do
  KEYS[declared + i] = ARGV[1 + i]
end

local delay_us = tonumber(ARGV[2 + more])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

-- Makes a log agree with the requests from one argument to another. Returns how many of them it had, and how long ago it
-- was reset.
local function reconcile(log, mark, retention_us, counts, first, last)
  local entries, reset_us = call('ZCARD', log), tonumber(mark and redis.pcall('GET', mark) or nil) or -1
  if reset_us > now_us then
    -- The clock has stepped back: it is unknown which requests are older than the reset. All count.
    reset_us = -1
  end
  local had, latest_us, name, sum, windows = 0, 0, '', 0, {}
  if counts == '3' and entries > 0 then
    local sums = call('ZRANGE', log, 0, 0, 'WITHSCORES')
    name, sum = sums[1], -1 - sums[2]
    windows = { struct.unpack('>' .. string.rep('d', #name / 8), name) }
    windows[#windows] = nil
  end
  if entries > 0 then
    -- First: a server without memory refuses no write behind one that needs none. Only a budget has such an entry.
    call('ZREM', log, name)
  end
  for a = first, last, 4 do
    local entry, places, age_us, origin = ARGV[a], tonumber(ARGV[a + 1]), ARGV[a + 2], ARGV[a + 3]
    local at_us, found = now_us - age_us, call('ZSCORE', log, entry)
    local found_us = tonumber(found or nil)
    local is_live = found_us and found_us + retention_us > now_us
    if is_live then
      had = had + 1
    end
    -- The age is that of the moment of sending. So the request looks newer than it is, by the time
    -- that the call was under way. If Redis had the entry and it is gone, and it may be older than
    -- the reset, then the reset has removed it, and it must not come back.
    local doubt_us = origin == 'redis' and delay_us or 0
    local is_wanted = tonumber(age_us) < retention_us
      and (reset_us < 0 or at_us - doubt_us >= reset_us) and origin ~= 'kept'
    local is_fixed = not is_wanted or origin ~= 'here' and counts ~= '1' and counts ~= '2'
    if not found_us and not is_wanted then
      places = 0
    elseif found_us and (found_us > at_us or is_fixed) then
      at_us = found_us
    end
    local at = string.format('%.0f', at_us)
    if counts == '3' then
      local initial, held = struct.unpack('>d', entry, 17), 0
      if found then
        held = initial
        for _, other in ipairs(call('ZRANGE', log, found, found, 'BYSCORE')) do
          if #other == 32 and string.sub(other, 1, 24) == entry then
            held = held + struct.unpack('>d', other, 25)
            call('ZREM', log, other)
          end
        end
        count(windows, found_us, -held)
        if origin == 'kept' and not is_live and places > 0 then
          -- What the log keeps no longer stays as it is.
          places = held
        end
      end
      count(windows, at_us, places)
      sum = sum + places - held
      if places > 0 and places ~= initial then
        call('ZADD', log, at, entry .. struct.pack('>d', places - initial))
      end
    end
    if places > 0 then
      call('ZADD', log, at, entry)
      latest_us = math.max(latest_us, at_us)
    elseif found then
      call('ZREM', log, entry)
    end
  end
  if sum > 0 then
    call('ZADD', log, -1 - sum, struct.pack('>' .. string.rep('d', #windows), unpack(windows)))
  end
  if latest_us > 0 then
    local expires_ms = math.ceil((latest_us + retention_us) / 1000) + 1000
    if now_ms + call('PTTL', log) < expires_ms then
      call('PEXPIREAT', log, expires_ms)
    end
  end
  return had, reset_us < 0 and -1 or now_us - reset_us
end

local numbers, n, errors, key, arg = {}, 0, nil, 1, 3 + more
while key <= #KEYS do
  local log, mark = KEYS[key], ARGV[arg + 2] == '1' and KEYS[key + 1]
  local retention_us, counts, first = tonumber(ARGV[arg]), ARGV[arg + 1], arg + 4
  arg, key = first + 4 * ARGV[arg + 3], key + 1 + ARGV[arg + 2]
  -- A server without memory refuses the first write of a call. Other logs of the call may need none.
  local is_done, had, reset_age_us = pcall(reconcile, log, mark, retention_us, counts, first, arg - 1)
  if is_done then
    numbers[n + 1], numbers[n + 2] = had, reset_age_us
    n = n + 2
  else
    errors = errors or {}
    errors[#errors + 1] = type(had) == 'table' and had.err or had
    numbers[n + 1] = -1
    n = n + 1
  end
end

local packed = struct.pack('>' .. string.rep('d', n), unpack(numbers, 1, n))
if errors then
  return { packed, unpack(errors) }
end
return packed
