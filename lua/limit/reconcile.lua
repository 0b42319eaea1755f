--[[
  Makes logs agree with what a process knows of its requests, also above the quotas. Leaves out
  what is older than the last reset of a log.

  Keys:
    KEYS[i] for each log:
      log (ZSET): the log; the score of an entry is its timestamp in microseconds
      mark (string): when the log was last reset, as reset.lua leaves it

  Arguments:
    ARGV[1] delay_us (microseconds): how long the call may have been under way
    ARGV[2...] for each log:
      kept_us (microseconds): how long it keeps its entries
      refreshes (0 or 1): whether an entry has the latest of its timestamps
      requests (count): how many follow
      for each request:
        member (16 bytes): the UUID of the request
        places (count): how many places it takes; 0 if it was cancelled
        age_us (microseconds): how long ago it was admitted
        origin (word): here, if the process admitted it without Redis; redis, if Redis admitted it
          and may have lost it; kept, if Redis has it unless it was removed

  Reply: as in admit.lua
    REPLY[1] numbers (bytes): each a big-endian double of 8 bytes
      for each log:
        added (entries): how many are new; -1 if Redis can't use the log, which concerns no other
          log: then the rest is missing
        reset_age_us (microseconds): how long ago the log was reset; -1 if no reset matters
    REPLY[2...] for each log that Redis could not use:
      error (text): why

  Cost: O(log n) for each place, n is the number of entries in the log.
  TTL: of a log as in admit.lua. It never becomes shorter.
]]
local call, try = redis.call, redis.pcall
local delay_us = tonumber(ARGV[1])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

local numbers, n, errors, arg = {}, 0, nil, 2
for k = 1, #KEYS, 2 do
  local log, mark = KEYS[k], KEYS[k + 1]
  local kept_us, refreshes, first = tonumber(ARGV[arg]), ARGV[arg + 1] == '1', arg + 3
  arg = first + 4 * ARGV[arg + 2]
  local entries, reset_us = try('ZCARD', log), tonumber(call('GET', mark) or -1)
  if type(entries) == 'table' then
    errors = errors or {}
    errors[#errors + 1] = entries.err
    numbers[n + 1] = -1
    n = n + 1
  else
    if reset_us > now_us then
      -- The clock has stepped back: it is unknown which requests are older than the reset. All count.
      reset_us = -1
    end
    local added, latest_us = 0, 0
    for a = first, arg - 1, 4 do
      local member, places, age_us, origin = ARGV[a], tonumber(ARGV[a + 1]), ARGV[a + 2], ARGV[a + 3]
      local at_us, found_us = now_us - age_us, tonumber(call('ZSCORE', log, member) or nil)
      -- The age is that of the moment of sending. So the request looks newer than it is, by the time
      -- that the call was under way. If Redis had the entry and it is gone, and it may be older than
      -- the reset, then the reset has removed it, and it must not come back.
      local doubt_us = origin == 'redis' and delay_us or 0
      local is_wanted = tonumber(age_us) < kept_us
        and (reset_us < 0 or at_us - doubt_us >= reset_us) and origin ~= 'kept'
      if not found_us and not is_wanted then
        places = 0
      elseif found_us and (found_us > at_us or not is_wanted or origin ~= 'here' and not refreshes) then
        at_us = found_us
      end
      -- The entries are the UUID, and the UUID with each number from 2 on, without a gap.
      local place = places + 1
      while found_us and call('ZREM', log, place == 1 and member or member .. place) == 1 do
        place = place + 1
      end
      local at = string.format('%.0f', at_us)
      for place = 1, places do
        added = added + call('ZADD', log, at, place == 1 and member or member .. place)
      end
      if places > 0 then
        latest_us = math.max(latest_us, at_us)
      end
    end
    if latest_us > 0 then
      local expires_ms = math.ceil((latest_us + kept_us) / 1000) + 1000
      if now_ms + call('PTTL', log) < expires_ms then
        call('PEXPIREAT', log, expires_ms)
      end
    end
    numbers[n + 1], numbers[n + 2] = added, reset_us < 0 and -1 or now_us - reset_us
    n = n + 2
  end
end

local packed = struct.pack('>' .. string.rep('d', n), unpack(numbers, 1, n))
if errors then
  return { packed, unpack(errors) }
end
return packed
