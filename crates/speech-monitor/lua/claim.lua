--[[
  Notes that a rule has muted a sender, and returns whether this message is the one to report it.

  Keys:
    KEYS[1] mutes (HASH): which rules have muted the sender
      RULE (until when, in microseconds), RULE:id (by which message), nth (how many mutes in a row),
      row_until_us (until when another mute is in the row)

  Arguments:
    ARGV[1] id (16 bytes): the UUID of the message that triggered the rule
    ARGV[2] rule (text): the rule
    ARGV[3] mute_us (microseconds): how long the mute lasts
    ARGV[4] remembered_us (microseconds): for how long after its end a mute is in a row with the next
    ARGV[5] nth (mutes): how many mutes in a row it is

  Reply:
    REPLY (0 or 1): 1 if the message is the first of the rule in the mute; a repeated call gets it again

  Cost: O(1).
  TTL: until the latest mute ends, and remembered_us and a second.
]]
local call, mutes, id, rule = redis.call, KEYS[1], ARGV[1], ARGV[2]
local mute_us, remembered_us = tonumber(ARGV[3]), tonumber(ARGV[4])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

local held = call('HMGET', mutes, rule, rule .. ':id')
if held[1] and tonumber(held[1]) > now_us then
  return held[2] == id and 1 or 0
end
call('HSET', mutes, rule, now_us + mute_us, rule .. ':id', id)
call('HSET', mutes, 'nth', ARGV[5], 'row_until_us', now_us + mute_us + remembered_us)
local ttl_ms = math.ceil((mute_us + remembered_us) / 1000) + 1000
if call('PTTL', mutes) < ttl_ms then
  call('PEXPIRE', mutes, ttl_ms)
end
return 1
