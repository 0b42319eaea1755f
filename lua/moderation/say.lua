-- Purpose: record what a sender says, and return what the rules need to judge it, in one atomic step.
-- KEYS[i]: for i from 1 to 3, a log of the sender, a ZSET of entries scored by stamp in microseconds: 1 of messages (id), 2 of private-chat peers (peer), 3 of texts (id and text).
-- KEYS[3]: the log of texts.
-- KEYS[4]: the sender's mute, as mute.lua keeps it.
-- ARGV[1]: id: the message's UUID, 16 bytes.
-- ARGV[2]: peer: to whom it is sent; empty if in no private chat.
-- ARGV[3]: text: what it says, normalised, UTF-8.
-- ARGV[4...9]: for each log: kept (how many entries it holds; 0 if the message has no place in it) and horizon_us (how far back it is needed).
-- ARGV[10...]: for each rule: log, count, window_us and mute_us.
-- Reply[1]: stamp of the message in microseconds of the Unix epoch.
-- Reply[2]: until_us: when the mute that stands ends, in microseconds of the Unix epoch; 0 if none does.
-- Reply[3]: rule, count and percent of the mute that stands, as text; empty if none does.
-- Reply[4]: for each rule, how many entries its window holds; 0 if its mute is not longer than the one that stands.
-- Reply[5]: ages in microseconds of the texts before this one that rules about them look at; empty if none of these has its count.
-- Reply[6]: these texts.
-- Cost: O(log n) a log and a rule, n the entries of a log, and O(n) for the texts.
-- TTL: horizon_us of the log and a second, renewed by each recorded message.

local call = redis.call
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local id = ARGV[1]
local entry = { id, ARGV[2], id .. ARGV[3] }

local kept = {}
for k = 1, 3 do
  kept[k] = tonumber(ARGV[2 * k + 2])
  if kept[k] > 0 then
    local horizon_us = ARGV[2 * k + 3]
    -- Another message to a peer moves its stamp; a message told of twice keeps its own.
    call('ZADD', KEYS[k], k == 2 and 'GT' or 'NX', now_us, entry[k])
    call('ZREMRANGEBYSCORE', KEYS[k], '-inf', now_us - horizon_us)
    call('ZREMRANGEBYRANK', KEYS[k], 0, -kept[k] - 1)
    local ttl_ms = math.ceil(horizon_us / 1000) + 1000
    if call('PTTL', KEYS[k]) < ttl_ms then
      call('PEXPIRE', KEYS[k], ttl_ms)
    end
  end
end

local until_us, mute_us, mute = 0, 0, {}
local held = call('HMGET', KEYS[4], 'until_us', 'mute_us', 'rule', 'count', 'percent')
if held[1] and tonumber(held[1]) > now_us then
  until_us, mute_us = tonumber(held[1]), tonumber(held[2])
  mute = { held[3], held[4], held[5] }
end

local counts, compared_us = {}, 0
for r = 10, #ARGV, 4 do
  local k, window_us, count = tonumber(ARGV[r]), tonumber(ARGV[r + 2]), 0
  if kept[k] > 0 and tonumber(ARGV[r + 3]) > mute_us then
    count = call('ZCOUNT', KEYS[k], now_us - window_us + 1, '+inf')
    if k == 3 and count >= tonumber(ARGV[r + 1]) then
      compared_us = math.max(compared_us, window_us)
    end
  end
  counts[#counts + 1] = count
end

local ages_us, texts = {}, {}
if compared_us > 0 then
  local said = call('ZRANGEBYSCORE', KEYS[3], now_us - compared_us + 1, '+inf', 'WITHSCORES')
  for at = 1, #said, 2 do
    if string.sub(said[at], 1, #id) ~= id then
      ages_us[#ages_us + 1] = math.max(now_us - said[at + 1], 0)
      texts[#texts + 1] = string.sub(said[at], #id + 1)
    end
  end
end
return { now_us, until_us, mute, counts, ages_us, texts }
