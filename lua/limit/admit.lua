-- Purpose: record a new request of weight 1 in one window under one quota of whole seconds, if it fits.
-- KEYS[1]: the log of the window, a ZSET of entries scored by stamp in microseconds.
-- ARGV[1]: member: the request's UUID, 16 bytes.
-- ARGV[2]: limit: how many entries the window holds.
-- ARGV[3]: window_s: the length of the window in seconds.
-- Reply: remaining if admitted, else -wait_us, which is never 0.
-- Cost: O(log n), n the entries of the log.
-- TTL: the window and 999 ms, renewed by each recorded request, and by a denial if it would be too short.

-- What admit_all.lua does for any request, at two thirds of the cost for nearly all of them. Most
-- of the difference is that no stamp is ever made a number and a string again.
local call, key, limit = redis.call, KEYS[1], tonumber(ARGV[2])
local time = call('TIME')
local s, us = time[1], time[2]
if #us < 6 then
  us = string.rep('0', 6 - #us) .. us
end

local held = call('ZCARD', key)
if held >= limit then
  -- The request fits once the limit-th newest entry has left.
  local rank = '-' .. ARGV[2]
  local wait_us = call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] + ARGV[3] * 1000000 - (s .. us)
  if wait_us > 0 then
    -- Entries recorded under a shorter window matter for as long as this one is.
    local window_us, newest_us = ARGV[3] * 1000000, call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
    if call('PTTL', key) * 1000 < math.min(newest_us + window_us - (s .. us), window_us) then
      call('PEXPIRE', key, ARGV[3] .. '999')
    end
    return -wait_us
  end
end
if held > 0 then
  held = held - call('ZREMRANGEBYSCORE', key, '-inf', (s - ARGV[3]) .. us)
end
local at_us, ttl_ms = s .. us, ARGV[3] .. '999'
if held > 0 and call('PTTL', key) > tonumber(ttl_ms) then
  -- The clock may have stepped back: what came later must not leave earlier, nor the log go before.
  local newest_us = call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  if tonumber(newest_us) > tonumber(at_us) then
    at_us, ttl_ms = newest_us, nil
  end
end
call('ZADD', key, at_us, ARGV[1])
if ttl_ms then
  -- 999 ms more than the window, for from 7.2 on Redis counts a TTL from when the script began:
  -- the log must not go before its entries do.
  call('PEXPIRE', key, ttl_ms)
end
return limit - held - 1
