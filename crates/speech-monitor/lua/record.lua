--[[
  Records what a sender says, and returns what the rules need to decide on it.

  Keys:
    KEYS[1] messages (ZSET): log 1, of messages; the member is the id
    KEYS[2] peers (ZSET): log 2, of the receivers in private chats; the member is the receiver
    KEYS[3] texts (ZSET): log 3, of texts; the member is the id, followed by the fingerprint

    The score of an entry in a log is its timestamp in microseconds.

  Arguments:
    ARGV[1] id (16 bytes): the UUID of the message
    ARGV[2] peer (bytes): the receiver; empty outside private chats
    ARGV[3] print (bytes): the fingerprint of the text
    ARGV[4...] for each log:
      capacity (entries): how many entries the log keeps; 0 if the message is not recorded in it
      horizon_us (microseconds): the longest window of its rules
    ARGV[10...] for each rule:
      log (index): which log it counts in, from 1
      threshold (entries): how many complete the rule
      window_us (microseconds): the length of the window

  Reply:
    REPLY[1] counts (array): for each rule
      count (entries): how many its window holds; 0 if the message is not recorded in its log
    REPLY[2] ages_us (array): for each earlier text to compare with; empty if no rule needs it
      age_us (microseconds): how old it is
    REPLY[3] prints (array): for each of them
      print (bytes): its fingerprint

  Cost: O(log n) for each log and rule, and O(n) for the texts, n is the number of entries in a log. After
    the clock has stepped back, once O(n log n) for each log.
  TTL: of a log horizon_us and a second. A recorded message renews it. It never becomes shorter.
]]
local call = redis.call
local messages, peers, texts = KEYS[1], KEYS[2], KEYS[3]
local id, peer, print = ARGV[1], ARGV[2], ARGV[3]
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

local logs, entry, capacity = { messages, peers, texts }, { id, peer, id .. print }, {}
for k = 1, #logs do
  capacity[k] = tonumber(ARGV[2 * k + 2])
  if capacity[k] > 0 then
    local log, horizon_us = logs[k], ARGV[2 * k + 3]
    -- The clock may have stepped back. What is ahead of it would count for as long as the step, and make the
    -- message the oldest. All step back with it.
    local newest_us = tonumber(call('ZRANGE', log, -1, -1, 'WITHSCORES')[2] or 0)
    if newest_us > now_us then
      local all = call('ZRANGE', log, 0, -1, 'WITHSCORES')
      for at = 1, #all, 2 do
        call('ZADD', log, now_us - 1 - (newest_us - all[at + 1]), all[at])
      end
    end
    -- A second message to a peer raises the timestamp. A repeated call keeps the timestamp.
    call('ZADD', log, log == peers and 'GT' or 'NX', now_us, entry[k])
    call('ZREMRANGEBYSCORE', log, '-inf', now_us - horizon_us)
    call('ZREMRANGEBYRANK', log, 0, -capacity[k] - 1)
    local ttl_ms = math.ceil(horizon_us / 1000) + 1000
    if call('PTTL', log) < ttl_ms then
      call('PEXPIRE', log, ttl_ms)
    end
  end
end

local counts, compared_us = {}, 0
for r = 10, #ARGV, 3 do
  local k, threshold, window_us = tonumber(ARGV[r]), tonumber(ARGV[r + 1]), tonumber(ARGV[r + 2])
  local log, count = logs[k], 0
  if capacity[k] > 0 then
    count = call('ZCOUNT', log, now_us - window_us + 1, '+inf')
    if log == texts and count >= threshold then
      compared_us = math.max(compared_us, window_us)
    end
  end
  counts[#counts + 1] = count
end

local ages_us, earlier = {}, {}
if compared_us > 0 then
  local found = call('ZRANGEBYSCORE', texts, now_us - compared_us + 1, '+inf', 'WITHSCORES')
  for at = 1, #found, 2 do
    if string.sub(found[at], 1, #id) ~= id then
      ages_us[#ages_us + 1] = math.max(now_us - found[at + 1], 0)
      earlier[#earlier + 1] = string.sub(found[at], #id + 1)
    end
  end
end
return { counts, ages_us, earlier }
