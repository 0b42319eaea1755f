--[[
  Mutes a sender, and returns the mute that stands afterwards. The mute of a rule changes nothing if
  the active one is as long or ends as late. A manual mute changes nothing if the active one ends as
  late. With a length of 0 it only reads.

  Keys:
    KEYS[1] mute (HASH): the sender's mute
      id, until_us, mute_us, rule, count, percent, lengthened (1 if it replaced one that stood),
      nth (how many mutes of rules in a row it is)

  Arguments:
    ARGV[1] id (16 bytes): the UUID of the message that completed the rule, or of a manual mute;
      may be empty to look
    ARGV[2] at_us (microseconds of the Unix epoch): the timestamp of that message, when the mute
      starts; 0 for a manual mute, which starts now, and to look
    ARGV[3] mute_us (microseconds): the length of the mute; 0 to look
    ARGV[4] rule (text): the rule
    ARGV[5] count (messages or peers): how many were found
    ARGV[6] percent (percent): how similar the messages are
    ARGV[7] remembered_us (microseconds): for how long after its end a mute counts in nth
    ARGV[8...] for each of a sender's first mutes by rules:
      first_us (microseconds): how long it lasts at most

  Reply:
    REPLY[1] now_us (microseconds of the Unix epoch): the timestamp of the reply
    REPLY[2] until_us (microseconds of the Unix epoch): when the mute ends; 0 if there is none
    REPLY[3] mute (array): empty if there is none; else
      rule (text): its rule
      count (text): its count
      percent (text): its percent
    REPLY[4] by_this (0 or 1): whether the mute comes from this message
    REPLY[5] lengthened (0 or 1): whether it comes from this message and replaced one that stood

  Cost: O(1).
  TTL: until the mute ends, and a second; and remembered_us if there is a limit of the first mutes.
]]
local call, mute, id, at_us = redis.call, KEYS[1], ARGV[1], ARGV[2]
local mute_us, rule, count, percent = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local remembered_us = ARGV[7]
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

local fields = { 'until_us', 'rule', 'count', 'percent', 'id', 'lengthened', 'mute_us', 'nth' }
local held = call('HMGET', mute, unpack(fields))
local stands = held[1] and tonumber(held[1]) > now_us
local is_manual = at_us == '0'
local nth = 0
if held[1] and now_us < held[1] + remembered_us then
  nth = tonumber(held[8] or 0)
end
if not is_manual and not (stands and nth > 0) then
  nth = nth + 1
end
local first_us = ARGV[7 + nth]
local until_us = (is_manual and now_us or at_us)
  + (is_manual and mute_us or math.min(mute_us, first_us or mute_us))
local is_covered = stands
    and (held[5] == id or until_us <= tonumber(held[1])
      or not is_manual and tonumber(mute_us) <= tonumber(held[7]))
if until_us > now_us and not is_covered then
  held = { until_us, rule, count, percent, id, stands and '1' or '0', mute_us, nth }
  for f = 1, #fields do
    call('HSET', mute, fields[f], held[f])
  end
  call('PEXPIRE', mute, math.ceil((until_us - now_us + remembered_us) / 1000) + 1000)
  stands = true
end

if not stands then
  return { now_us, 0, {}, 0, 0 }
end
local by_this = held[5] == id and 1 or 0
return { now_us, tonumber(held[1]), { held[2], held[3], held[4] }, by_this, by_this * held[6] }
