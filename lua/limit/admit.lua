--[[
  Records new requests of cost 1, each in one log under one quota of whole seconds, if they fit.

  It decides on each as admit_all.lua does, at two thirds of the cost. Most of the difference comes
  from the timestamps: they stay strings, and are not converted to numbers and back. Many requests
  in one call share what a call costs, and the clock. What is rare it leaves to admit_all.lua.

  Keys:
    KEYS[i] for each request:
      log (ZSET): the log; the score of an entry is its timestamp in microseconds

  Arguments:
    ARGV[1...] for each group of requests under one quota, in the order of the keys:
      requests (count): how many requests the group has
      limit (requests): how many the quota allows in its window
      window_s (seconds): the length of the window
      wants_reset (0 or 1): whether the reply has reset_us
      for each request:
        member (16 bytes): the UUID of the request

  Reply:
    REPLY[1] numbers (bytes): each a big-endian double of 8 bytes, because a client reads many
      integers of Redis slowly
      at_us (microseconds of the Unix epoch): the timestamp of the decisions
      for each request:
        state (-1, 0, 1 or 2): 1 if it is admitted, 0 if it is denied; 2 if admit_all.lua has to
          decide, because a policy with a longer window has used the log or the clock has stepped
          back; -1 if Redis can't use the log, which concerns no other request: then the rest is
          missing
        places or wait_us (requests or microseconds): if it is admitted, how many more requests
          fit; if it is denied, the time until it fits; else 0
        reset_us (microseconds): the time until the oldest entry leaves; missing unless it is wanted
    REPLY[2...] for each request that Redis could not serve:
      error (text): why

  Cost: O(log n) for each request, n is the number of entries in its log.
  TTL: a log expires one window and a second after its newest entry.
]]
local call = redis.call
local time = call('TIME')
local s, us = time[1], time[2]
if #us < 6 then
  us = string.rep('0', 6 - #us) .. us
end
local now_us = s .. us

-- Of the group of the present request.
local limit, window_s, wants_reset, expired_us, expires_ms

local function reset_us(log)
  local since_us = '(' .. expired_us
  local oldest = call('ZRANGE', log, since_us, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  return oldest[2] + window_s * 1000000 - now_us
end

-- Returns the state and what comes after it in the reply.
local function decide(log, member)
  local entries = call('ZCARD', log)
  if entries == 0 then
    call('ZADD', log, now_us, member)
    call('PEXPIREAT', log, expires_ms)
    return 1, limit - 1
  end

  local newest_us = call('ZRANGE', log, -1, -1, 'WITHSCORES')[2]
  local newest_ms, own_ms = math.floor(newest_us / 1000), (window_s + 1) * 1000
  local kept_ms = call('PTTL', log) + math.floor(now_us / 1000) - newest_ms
  if kept_ms > own_ms + 1 or newest_us - now_us > 0 then
    return 2, 0
  end
  if entries >= limit then
    -- The request fits as soon as the limit-th newest entry has left the window.
    local leaves_us = call('ZRANGE', log, -limit, -limit, 'WITHSCORES')[2] + window_s * 1000000
    local wait_us = leaves_us - now_us
    if wait_us > 0 then
      if kept_ms < own_ms - 1 then
        -- A policy with a shorter window has used the log.
        call('PEXPIREAT', log, newest_ms + own_ms)
      end
      if entries > limit then
        -- There may be marks.
        call('ZREMRANGEBYSCORE', log, '-inf', expired_us)
      end
      return 0, wait_us
    end
  end
  local free = limit - entries + call('ZREMRANGEBYSCORE', log, '-inf', expired_us)
  call('ZADD', log, now_us, member)
  call('PEXPIREAT', log, expires_ms)
  return 1, free - 1
end

local numbers, n, errors, i, arg, member = { now_us }, 1, {}, 1, 1, 1

-- Decides on the requests of a group, from the next one on.
local function decide_rest()
  while member < arg do
    local log = KEYS[i]
    local state, rest = decide(log, ARGV[member])
    if wants_reset then
      numbers[n + 3] = state == 2 and 0 or reset_us(log)
    end
    numbers[n + 1], numbers[n + 2] = state, rest
    n = n + (wants_reset and 3 or 2)
    i, member = i + 1, member + 1
  end
end

while i <= #KEYS do
  limit, window_s, wants_reset = tonumber(ARGV[arg + 1]), ARGV[arg + 2], ARGV[arg + 3] == '1'
  expired_us, expires_ms = (s - window_s) .. us, (s + window_s + 1) .. string.sub(us, 1, 3)
  member = arg + 4
  arg = member + ARGV[arg]
  while member < arg do
    local is_decided, reply = pcall(decide_rest)
    if not is_decided then
      -- An error is a table from version 7.0 on, and a string before.
      errors[#errors + 1] = reply.err or reply
      n, i, member = n + 1, i + 1, member + 1
      numbers[n] = -1
    end
  end
end
local reply = { struct.pack('>' .. string.rep('d', n), unpack(numbers)), unpack(errors) }
return reply
