--[[
  Tells the time of Redis, and agrees on when the sale opens: the latest proposal stands.

  Keys:
    KEYS[1] opening (string): when the sale opens, in microseconds since 1970

  Arguments:
    ARGV[1] proposed (microseconds): when the sale should open; empty if nothing is proposed
    ARGV[2] until_ms (milliseconds): until when to keep the proposal, counted from 1970

  Reply:
    REPLY[1] now_us (microseconds): the time of Redis
    REPLY[2] held (text): the opening that stands; empty if there is none

  Cost: O(1).
  TTL: up to the time that came with the proposal that stands.
]]
local call, opening = redis.call, KEYS[1]
local proposed, until_ms = ARGV[1], ARGV[2]
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

local held = call('GET', opening)
-- What another program has written there is no number, and stays.
if proposed ~= '' and (not held or (tonumber(held) or math.huge) < tonumber(proposed)) then
  call('SET', opening, proposed, 'PXAT', until_ms)
  held = proposed
end
return { now_us, held or '' }
