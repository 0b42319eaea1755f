-- Purpose: mute a sender, unless a mute stands that is as long or ends as late; or only look at the one that stands.
-- KEYS[1]: the sender's mute, a HASH: id, until_us, mute_us, rule, count, percent, and lengthened ("1" if it replaced one that stood).
-- ARGV[1]: id: the UUID of the message that completed the rule, 16 bytes; may be empty to look.
-- ARGV[2]: at_us: the stamp of that message in microseconds of the Unix epoch, from when on the mute counts; 0 to look.
-- ARGV[3]: mute_us: how long the mute is; 0 to look.
-- ARGV[4]: rule: as text.
-- ARGV[5]: count: how many messages or peers were found.
-- ARGV[6]: percent: how much the messages are alike.
-- Reply[1]: stamp of now in microseconds of the Unix epoch.
-- Reply[2]: until_us: when the mute that stands ends, in microseconds of the Unix epoch; 0 if none does.
-- Reply[3]: rule, count and percent of the mute that stands, as text; empty if none does.
-- Reply[4]: 1 if it stands by this message, else 0.
-- Reply[5]: 1 if it stands by this message and replaced one that stood, else 0.
-- Cost: O(1).
-- TTL: until the mute ends, and a second.

local call = redis.call
local key, id, mute_us = KEYS[1], ARGV[1], tonumber(ARGV[3])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

local fields = { 'until_us', 'rule', 'count', 'percent', 'id', 'lengthened', 'mute_us' }
local held = call('HMGET', key, unpack(fields))
local stands = held[1] and tonumber(held[1]) > now_us
local until_us = ARGV[2] + mute_us
if until_us > now_us
    and not (stands and (mute_us <= tonumber(held[7]) or until_us <= tonumber(held[1]))) then
  held = { until_us, ARGV[4], ARGV[5], ARGV[6], id, stands and '1' or '0', ARGV[3] }
  for f = 1, #fields do
    call('HSET', key, fields[f], held[f])
  end
  call('PEXPIRE', key, math.ceil((until_us - now_us) / 1000) + 1000)
  stands = true
end

if not stands then
  return { now_us, 0, {}, 0, 0 }
end
local by_this = held[5] == id and 1 or 0
local mute = { held[2], held[3], held[4] }
return { now_us, tonumber(held[1]), mute, by_this, by_this * held[6] }
