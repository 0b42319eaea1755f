--[[
  Tells the time of Redis, and when the sale opens. Of two dates the later one stands, unless the sale has opened:
  the secret of its draw is known. A delay is added to the time of Redis only if nothing stands.

  Keys:
    KEYS[1] opening (string): when the sale opens, in microseconds since 1970

  Arguments:
    ARGV[1] date (microseconds): a proposed date, since 1970; empty if there is none
    ARGV[2] delay (microseconds): a proposed delay; empty if there is none

  Reply:
    REPLY[1] now_us (microseconds): the time of Redis
    REPLY[2] opening (text): the opening that stands; empty if there is none

  Cost: O(1).
  TTL: none. It is kept as the orders are.
]]
local call, opening = redis.call, KEYS[1]
local date, delay = ARGV[1], ARGV[2]
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

local held = call('GET', opening)
local proposed = tonumber(date) or (not held and tonumber(delay) and now_us + delay)
-- What is no number was written by another program, and stays.
local closed_until = tonumber(held) or math.huge
if proposed and (not held or closed_until > now_us and closed_until < proposed) then
  held = string.format('%.0f', proposed)
  call('SET', opening, held)
end
return { now_us, held or '' }
