--[[
  Records the admissions that a process knows, also above the quotas. Leaves out those from before
  the last reset of their log.

  Keys:
    KEYS[i] for each log:
      log (ZSET): the log; the score of an entry is its timestamp in microseconds
      mark (string): when the log was last reset, as reset.lua leaves it

  Arguments:
    ARGV[1] delay_us (microseconds): how long the call may have been under way
    ARGV[2...] for each log:
      horizon_us (microseconds): the longest window of the log's quotas
      admissions (count): how many follow
      for each admission:
        member (16 bytes): the UUID of the request
        cost (places): how many places it takes
        age_us (microseconds): how long ago it was admitted
        mode (word): GT, to raise the timestamp of an entry that is there; NX, to leave it

  Reply:
    REPLY[1] numbers (bytes): each a big-endian double of 8 bytes
      for each log:
        added (entries): how many entries are new; -1 if Redis can't use the log, which concerns no
          other log: then the rest is missing
        reset_age_us (microseconds): how long ago the log was reset; -1 if no reset matters
    REPLY[2...] for each log that Redis could not use:
      error (text): why

  Cost: O(log n) for each place, n is the number of entries in the log.
  TTL: of a log as in admit_all.lua. It never becomes shorter.
]]
local call = redis.call
local delay_us = tonumber(ARGV[1])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

local function restore(k, horizon_us, first, last)
  local log, mark = KEYS[k], KEYS[k + 1]
  local reset_us = tonumber(call('GET', mark) or -1)
  if reset_us > now_us then
    -- The clock has stepped back: it is unknown which admissions are older than the reset. All
    -- count.
    reset_us = -1
  end
  -- A policy with a longer window may need the entries for longer, see admit_all.lua.
  local own_ms = math.ceil(horizon_us / 1000) + 1000
  local kept_ms = own_ms
  local newest_us = tonumber(call('ZRANGE', log, -1, -1, 'WITHSCORES')[2] or -1)
  if newest_us >= 0 then
    kept_ms = math.max(own_ms, call('PTTL', log) + now_ms - math.floor(newest_us / 1000))
  end
  -- Without marks, which have negative scores, the longest window counts as just used.
  local last_us = '(0'
  if kept_ms <= own_ms + 1 then
    last_us = now_us - horizon_us
  end
  call('ZREMRANGEBYSCORE', log, '-inf', last_us)

  local added, latest_us, is_used = 0, newest_us, false
  for a = first, last, 4 do
    local member, cost, age_us, mode = ARGV[a], tonumber(ARGV[a + 1]), ARGV[a + 2], ARGV[a + 3]
    local at_us, left_us = now_us - age_us, horizon_us - age_us
    local since_us, least_left_us = reset_us, 0
    if mode == 'NX' then
      -- The age is that of the moment of sending. So the admission looks newer than it is, by the
      -- time that the call was under way. This log had the entry. If the entry is gone and may be
      -- older than the reset or the window, one of these removed it, and it must not come back.
      least_left_us = delay_us
      if reset_us >= 0 then
        since_us = reset_us + delay_us
      end
    end
    if cost > 0 and left_us > least_left_us and at_us >= since_us then
      is_used = true
      if call('ZADD', log, mode, at_us, member) == 1 then
        for n = 2, cost do
          call('ZADD', log, at_us, member .. n)
        end
        added = added + cost
        latest_us = math.max(latest_us, at_us)
      elseif mode == 'GT' then
        latest_us = math.max(latest_us, at_us)
        -- The request may have been settled, so the log knows how many entries it has.
        local n = 2
        while call('ZADD', log, 'XX', 'GT', 'CH', at_us, member .. n) == 1 do
          n = n + 1
        end
      end
    end
  end
  if is_used then
    local expires_ms = math.floor(latest_us / 1000) + kept_ms
    if now_ms + call('PTTL', log) < expires_ms then
      call('PEXPIREAT', log, expires_ms)
    end
  end
  return added, reset_us < 0 and -1 or now_us - reset_us
end

local numbers, n, errors, arg = {}, 0, {}, 2
for k = 1, #KEYS, 2 do
  local horizon_us, first = tonumber(ARGV[arg]), arg + 2
  arg = first + 4 * ARGV[arg + 1]
  local is_done, added, reset_age_us = pcall(restore, k, horizon_us, first, arg - 1)
  if is_done then
    numbers[n + 1], numbers[n + 2] = added, reset_age_us
    n = n + 2
  else
    -- An error is a table from version 7.0 on, and a string before.
    errors[#errors + 1] = added.err or added
    numbers[n + 1] = -1
    n = n + 1
  end
end
local reply = { struct.pack('>' .. string.rep('d', n), unpack(numbers)), unpack(errors) }
return reply
