--[[
  Records new requests of cost 1, each in one log under one quota of whole seconds, if they fit.

  It decides on each as admit_all.lua does, at two thirds of the cost. Most of the difference comes
  from the timestamps: they stay strings, and are not converted to numbers and back. Many requests
  in one call share what a call costs, and the clock.

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
        denied, minus the time until the request fits, less than 0; the text of the error if Redis
        can't use the log, which concerns no other request; if more is wanted, an array of three
      at_us (microseconds of the Unix epoch, as text): the timestamp of the decision
      reset_us (microseconds): the time until the oldest entry leaves; 0 unless it is wanted

  Cost: O(log n) for each request, n is the number of entries in its log.
  TTL: the window and 999 ms. An admission renews it. A denial renews it if it is too short. A
    longer TTL, of another policy with a longer window, stays.
]]
local call = redis.call
local time = call('TIME')
local s, us = time[1], time[2]
if #us < 6 then
  us = string.rep('0', 6 - #us) .. us
end
local now_us = s .. us

-- Returns what is wanted in addition to the decision.
local function detailed(decision, log, at_us, window_s, wanted)
  local reset_us = 0
  if wanted == 'reset' then
    local since_us = '(' .. (s - window_s) .. us
    local oldest = call('ZRANGEBYSCORE', log, since_us, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    reset_us = oldest[2] + window_s * 1000000 - now_us
  end
  local reply = { decision, at_us, reset_us }
  return reply
end

local function decide(i, member, limit, window_s, longest_ms, wanted)
  local log = KEYS[i]
  local entries = call('ZCARD', log)
  local free = limit - entries
  if free <= 0 then
    -- The request fits as soon as the limit-th newest entry has left the window.
    local window_us = window_s * 1000000
    local wait_us = call('ZRANGE', log, -limit, -limit, 'WITHSCORES')[2] + window_us - now_us
    if wait_us > 0 then
      -- The TTL may come from a shorter window: keep the entries as long as this one needs them.
      local newest_us = call('ZRANGE', log, -1, -1, 'WITHSCORES')[2]
      if call('PTTL', log) * 1000 < math.min(newest_us + window_us - now_us, window_us) then
        call('PEXPIRE', log, longest_ms)
      end
      if wanted ~= 'decision' then
        return detailed(-wait_us, log, now_us, window_s, wanted)
      end
      return -wait_us
    end
  end
  local at_us, ttl_ms = now_us, longest_ms
  if entries > 0 then
    local expired_us = (s - window_s) .. us
    if call('PTTL', log) <= tonumber(ttl_ms) then
      free = free + call('ZREMRANGEBYSCORE', log, '-inf', expired_us)
    else
      -- Another policy needs the entries for longer, or the clock has stepped back. Nothing is
      -- removed, the TTL does not become shorter, and the new entry must not leave before the
      -- newest one.
      free, ttl_ms = limit - call('ZCOUNT', log, '(' .. expired_us, '+inf'), nil
      local newest_us = call('ZRANGE', log, -1, -1, 'WITHSCORES')[2]
      if tonumber(newest_us) > tonumber(at_us) then
        at_us = newest_us
      end
    end
  end
  call('ZADD', log, at_us, member)
  if ttl_ms then
    call('PEXPIRE', log, ttl_ms)
  end
  if wanted ~= 'decision' then
    return detailed(free - 1, log, at_us, window_s, wanted)
  end
  return free - 1
end

local replies, i, arg, member = {}, 1, 1, 1
local limit, window_s, wanted, longest_ms

-- Decides on the requests of a group, from the next one on.
local function decide_rest()
  while member < arg do
    replies[i] = decide(i, ARGV[member], limit, window_s, longest_ms, wanted)
    i, member = i + 1, member + 1
  end
end

while i <= #KEYS do
  limit, window_s, wanted = tonumber(ARGV[arg + 1]), ARGV[arg + 2], ARGV[arg + 3]
  -- From version 7.2 on, Redis counts a TTL from the start of the script. The 999 ms keep a log
  -- from expiring before its entries have left the window.
  longest_ms = window_s .. '999'
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
