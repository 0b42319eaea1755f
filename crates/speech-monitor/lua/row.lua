--[[
  Notes that a sender was muted, for the length of the next mute and for the rules that count meanwhile.

  Keys:
    KEYS[1] row (HASH): the mutes in a row
      nth (how many), until_us (when the latest ends), length_us (how long it was imposed for)

  Arguments:
    ARGV[1] nth (mutes): how many mutes in a row it is; 0 for a manual mute, which is not counted
    ARGV[2] remaining_us (microseconds): how long the mute still lasts
    ARGV[3] length_us (microseconds): how long it was imposed for
    ARGV[4] remembered_us (microseconds): for how long after its end a mute is in a row with the next

  Reply:
    REPLY nth (mutes): how many mutes in a row it is now

  Cost: O(1).
  TTL: until the mute ends, and remembered_us and a second. It never becomes shorter.
]]
local call, row = redis.call, KEYS[1]
local nth, remaining_us = tonumber(ARGV[1]), tonumber(ARGV[2])
local length_us, remembered_us = tonumber(ARGV[3]), tonumber(ARGV[4])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

-- Two mutes may be noted in the other order than they were imposed.
local held = call('HMGET', row, 'nth', 'until_us', 'length_us')
local held_until_us = tonumber(held[2] or 0)
local until_us = math.max(now_us + remaining_us, held_until_us)
if held_until_us > now_us then
  length_us = math.max(length_us, tonumber(held[3]))
end
if held_until_us + remembered_us > now_us then
  nth = math.max(nth, tonumber(held[1]))
end
call('HSET', row, 'nth', nth, 'until_us', until_us, 'length_us', length_us)
local ttl_ms = math.ceil((until_us - now_us + remembered_us) / 1000) + 1000
if call('PTTL', row) < ttl_ms then
  call('PEXPIRE', row, ttl_ms)
end
return nth
