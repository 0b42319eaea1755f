--[[
  Records a request in each of several logs if it fits into all of them, and in none otherwise.

  Keys:
    KEYS[i] for each log:
      log (ZSET): the log; the score of an entry is its timestamp in microseconds
    KEYS[i] then, for each log whose policy has a penalty:
      record (HASH): the ban record: until, level, reason, episode_until
      strikes (ZSET): the strikes; the score of a strike is its timestamp in microseconds

  Arguments:
    ARGV[1] member (16 bytes): the UUID of the request
    ARGV[2] mode (word): new; repeat, if it may have been recorded already; peek, to record nothing
    ARGV[3] wants_reset (0 or 1): whether the reply has reset_us
    ARGV[4] logs (count): how many logs the check has
    ARGV[5...] for each log:
      cost (places): how many places the request takes in it
      horizon_us (microseconds): the longest window of its quotas
      quotas (count): how many quotas follow
      for each quota:
        limit (places): how many the quota allows; negative for a candidate, which never denies
        window_us (microseconds): the length of the window
    ARGV[5...] then, for each log whose policy has a penalty:
      place (index): which log it is, from 1
      max_strikes (strikes): how many bring a ban; 0 if strikes are not counted
      within_us (microseconds): how long a strike counts
      decay_us (microseconds): after how long without a ban the level falls by one
      reason (bytes): the reason of a ban that strikes bring
      levels (count): how many levels follow
      for each level:
        ban_us (microseconds): the length of the ban

  Reply: one string of numbers, each a big-endian double of 8 bytes
    REPLY[1] admitted (0 or 1): whether the request is admitted
    REPLY[2] at_us (microseconds of the Unix epoch): the timestamp of the decision
    REPLY[3...] for each quota:
      remaining (places): how many are free after the decision
      wait_us (microseconds): the time until the request fits; 0 if it fits
      reset_us (microseconds): the time until the oldest entry leaves; 0 if there is none or
        wants_reset is 0
    REPLY[3...] then, for each log whose policy has a penalty:
      wait_us (microseconds): how long the ban still lasts; 0 if there is none
      struck (0, 1 or 2): 1 if the request was a strike, 2 if it brought a ban

  Cost: O(log n) for each quota and O(1) for each key, n is the number of entries in the log or of
    strikes.
  TTL: a log expires its longest window and a second after its newest entry, or later, see below.
    Of the strikes within_us and a second. Of a ban record a second more than the time until the
    ban, the levels and the episode are over.

  Policies with different windows can share a log. It is kept for the longest one in use: one that
  has recorded or denied a request within its own length, while the log was not empty. The time
  from the newest entry to the expiry says how long the log is kept, a window and a second. If that
  is longer than a policy needs, the policy finds out which windows are in use, by marks. A mark is
  a member with a negative score, which no entry has. The member says how long the log is kept
  after its newest entry, in milliseconds. The score says until when, in milliseconds above
  marks_ms. If there is no mark, the longest window may just have been used, and gets one. Then the
  policy sets its own. A policy with the longest window in use sets none. It removes the marks with
  the entries that have expired. Windows that differ by less than 2 ms count as one.
]]
local call = redis.call
local marks_ms = -2000000000000000 -- lower than any instant minus any window
local member, mode = ARGV[1], ARGV[2]
local wants_reset, logs = ARGV[3] == '1', tonumber(ARGV[4])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

-- Returns how long a log is kept after its newest entry: by this policy, or by one with a longer
-- window that is in use. Marks that this policy is in use.
local function longest_in_use(log, own_ms, kept_ms, newest_ms)
  local marks, longest_ms = call('ZRANGE', log, '-inf', '(0', 'BYSCORE', 'WITHSCORES'), own_ms
  -- If the clock has stepped back, the new entry has the timestamp of the newest one.
  local since_ms = marks_ms + math.max(now_ms, newest_ms)
  if #marks == 0 then
    longest_ms = kept_ms
  end
  for m = 1, #marks, 2 do
    if marks[m + 1] - marks_ms > now_ms then
      longest_ms = math.max(longest_ms, marks[m])
    end
  end
  if mode ~= 'peek' then
    call('ZADD', log, since_ms + own_ms, own_ms)
    if #marks == 0 then
      call('ZADD', log, since_ms + kept_ms, kept_ms)
    end
  end
  return longest_ms
end

local arg, own_ms, kept_ms, longest_ms, newest_us = 5, {}, {}, {}, {}
for k = 1, logs do
  local log, horizon_us, quotas = KEYS[k], ARGV[arg + 1], ARGV[arg + 2]
  own_ms[k] = math.ceil(horizon_us / 1000) + 1000
  longest_ms[k] = own_ms[k]
  newest_us[k] = tonumber(call('ZRANGE', log, -1, -1, 'WITHSCORES')[2])
  if newest_us[k] and newest_us[k] < 0 then
    -- Only marks are left.
    call('DEL', log)
    newest_us[k] = nil
  end
  if newest_us[k] then
    local newest_ms = math.floor(newest_us[k] / 1000)
    kept_ms[k] = call('PTTL', log) + now_ms - newest_ms
    if kept_ms[k] > own_ms[k] + 1 then
      -- One more, because PTTL reads a later clock than TIME before version 7.2.
      longest_ms[k] = longest_in_use(log, own_ms[k], kept_ms[k] + 1, newest_ms)
    end
    local longest_us, lowest = horizon_us, mode == 'peek' and 0 or '-inf'
    if longest_ms[k] > own_ms[k] then
      longest_us, lowest = (longest_ms[k] - 1000) * 1000, 0
    end
    call('ZREMRANGEBYSCORE', log, lowest, now_us - longest_us)
  end
  arg = arg + 3 + 2 * quotas
end

local recorded_us
if mode == 'repeat' then
  for k = 1, logs do
    recorded_us = recorded_us or call('ZSCORE', KEYS[k], member)
  end
end

local admitted, reply, slot, longest_full_us = 1, { 1, now_us }, 3, {}
arg = 5
for k = 1, logs do
  local log, cost, horizon_us = KEYS[k], tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local quotas, first = ARGV[arg + 2], arg + 3
  local entries = newest_us[k] and call('ZCARD', log) or 0
  arg = first + 2 * quotas
  for q = first, arg - 1, 2 do
    local limit, window_us = tonumber(ARGV[q]), tonumber(ARGV[q + 1])
    local is_enforced = limit > 0
    limit = math.abs(limit)
    local used, wait_us = entries, 0
    if window_us < horizon_us or longest_ms[k] > own_ms[k] or mode == 'peek' then
      used = call('ZCOUNT', log, now_us - window_us + 1, '+inf')
    end
    if used + cost > limit and not recorded_us then
      wait_us = window_us
      if cost <= limit then
        -- The request fits as soon as the (limit - cost + 1)-th newest entry has left the window.
        local rank = cost - limit - 1
        wait_us = call('ZRANGE', log, rank, rank, 'WITHSCORES')[2] + window_us - now_us
      end
      if is_enforced then
        admitted = 0
        longest_full_us[k] = math.max(longest_full_us[k] or 0, window_us)
      end
    end
    reply[slot], reply[slot + 1], reply[slot + 2] = math.max(limit - used, 0), wait_us, 0
    slot = slot + 3
  end
end

-- A request that meets a ban is denied. A request that a full quota denies is a strike, and enough
-- strikes bring a ban. All denials within one length of the window after a strike are one episode,
-- and only the first of them is a strike.
local key = logs + 1
while key < #KEYS do
  local record, strikes, place = KEYS[key], KEYS[key + 1], tonumber(ARGV[arg])
  local max_strikes, within_us = tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local decay_us, reason, levels = tonumber(ARGV[arg + 3]), ARGV[arg + 4], tonumber(ARGV[arg + 5])
  local full_us = longest_full_us[place]
  local known = call('HMGET', record, 'until', 'level', 'episode_until')
  local until_us, level = tonumber(known[1] or 0), tonumber(known[2] or 0)
  local in_episode = known[3] and now_us < tonumber(known[3])
  local struck = 0
  if until_us > now_us and not recorded_us then
    admitted = 0
  elseif full_us and max_strikes > 0 and mode ~= 'peek' and not in_episode then
    struck = 1
    call('ZREMRANGEBYSCORE', strikes, '-inf', now_us - within_us)
    call('ZADD', strikes, now_us, member)
    call('PEXPIRE', strikes, math.ceil(within_us / 1000) + 1000)
    if call('ZCARD', strikes) >= max_strikes then
      struck = 2
      call('DEL', strikes)
      level = math.max(0, level - math.floor((now_us - until_us) / decay_us))
      until_us = now_us + ARGV[arg + 6 + math.min(level, levels - 1)]
      level = math.min(level + 1, levels)
      call('HSET', record, 'until', until_us, 'level', level, 'reason', reason)
    end
    call('HSET', record, 'episode_until', now_us + full_us)
    local over_us = math.max(until_us + level * decay_us, now_us + full_us)
    call('PEXPIRE', record, math.ceil((over_us - now_us) / 1000) + 1000)
  end
  local wait_us = recorded_us and 0 or math.max(until_us - now_us, 0)
  reply[slot], reply[slot + 1], slot = wait_us, struck, slot + 2
  key, arg = key + 2, arg + 6 + levels
end

reply[1] = admitted
if recorded_us then
  reply[2] = tonumber(recorded_us)
end

local is_recorded = admitted == 1 and not recorded_us and mode ~= 'peek'
arg = 5
for k = 1, logs do
  local log, cost, newest = KEYS[k], tonumber(ARGV[arg]), newest_us[k]
  arg = arg + 3 + 2 * ARGV[arg + 2]
  -- If the clock has stepped back, the new entry must not leave before the newest one.
  local at_us = math.max(now_us, newest or 0)
  if is_recorded then
    reply[2] = math.max(reply[2], at_us)
  end
  if is_recorded and cost > 0 then
    -- A request of cost n is n entries: the UUID, and the UUID with each number from 2 to n.
    for n = 1, cost do
      call('ZADD', log, at_us, n == 1 and member or member .. n)
    end
    call('PEXPIREAT', log, math.floor(at_us / 1000) + longest_ms[k])
  elseif newest and mode ~= 'peek' and longest_ms[k] == own_ms[k] then
    if math.abs(kept_ms[k] - own_ms[k]) > 1 then
      -- A policy with another window has used the log: keep the entries as long as this one needs.
      call('PEXPIREAT', log, math.floor(newest / 1000) + own_ms[k])
    end
  end
end

if is_recorded or wants_reset then
  arg, slot = 5, 3
  for k = 1, logs do
    local log, taken, first = KEYS[k], is_recorded and ARGV[arg] or 0, arg + 3
    arg = first + 2 * ARGV[arg + 2]
    for q = first, arg - 1, 2 do
      reply[slot] = math.max(reply[slot] - taken, 0)
      if wants_reset then
        local window_us = tonumber(ARGV[q + 1])
        local since_us = now_us - window_us + 1
        local oldest = call('ZRANGE', log, since_us, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
        reply[slot + 2] = oldest[2] and oldest[2] + window_us - now_us or 0
      end
      slot = slot + 3
    end
  end
end
return struct.pack('>' .. string.rep('d', #reply), unpack(reply))
