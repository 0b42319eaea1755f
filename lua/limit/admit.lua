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
      wanted (word): decision; timestamp, for a reply with at_us; reset, for one with reset_us too
      for each request:
        member (16 bytes): the UUID of the request

  Reply:
    REPLY[i] for each request:
      decision (requests or microseconds): if admitted, how many more requests fit, 0 or more; if
        denied, minus the time until the request fits, less than 0; null if admit_all.lua has to
        decide, because a policy with a longer window has used the log or the clock has stepped
        back; the text of the error if Redis can't use the log, which concerns no other request; if
        more is wanted, an array of three
      at_us (microseconds of the Unix epoch, as text): the timestamp of the decision
      reset_us (microseconds): the time until the oldest entry leaves; 0 unless it is wanted

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
local limit, window_s, wanted, expired_us, expires_ms

-- Returns the reply to a request.
local function reply_of(decision, log)
  if wanted == 'decision' then
    return decision
  end
  local reset_us = 0
  if wanted == 'reset' then
    local since_us = '(' .. expired_us
    local oldest = call('ZRANGE', log, since_us, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    reset_us = oldest[2] + window_s * 1000000 - now_us
  end
  local reply = { decision, now_us, reset_us }
  return reply
end

local function decide(i, member)
  local log = KEYS[i]
  local entries = call('ZCARD', log)
  if entries == 0 then
    call('ZADD', log, now_us, member)
    call('PEXPIREAT', log, expires_ms)
    return reply_of(limit - 1, log)
  end

  local newest_us = call('ZRANGE', log, -1, -1, 'WITHSCORES')[2]
  local newest_ms, own_ms = math.floor(newest_us / 1000), (window_s + 1) * 1000
  local kept_ms = call('PTTL', log) + math.floor(now_us / 1000) - newest_ms
  if kept_ms > own_ms + 1 or newest_us - now_us > 0 then
    return false
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
      return reply_of(-wait_us, log)
    end
  end
  local free = limit - entries + call('ZREMRANGEBYSCORE', log, '-inf', expired_us)
  call('ZADD', log, now_us, member)
  call('PEXPIREAT', log, expires_ms)
  return reply_of(free - 1, log)
end

local replies, i, arg, member = {}, 1, 1, 1

-- Decides on the requests of a group, from the next one on.
local function decide_rest()
  while member < arg do
    replies[i] = decide(i, ARGV[member])
    i, member = i + 1, member + 1
  end
end

while i <= #KEYS do
  limit, window_s, wanted = tonumber(ARGV[arg + 1]), ARGV[arg + 2], ARGV[arg + 3]
  expired_us, expires_ms = (s - window_s) .. us, (s + window_s + 1) .. string.sub(us, 1, 3)
  member = arg + 4
  arg = member + ARGV[arg]
  while member < arg do
    local is_decided, reply = pcall(decide_rest)
    if not is_decided then
      -- An error is a table from version 7.0 on, and a string before.
      replies[i] = reply.err or reply
      i, member = i + 1, member + 1
    end
  end
end
return replies
