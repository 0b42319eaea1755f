-- Purpose: record a request in every one of several windows if it fits into all of them, else in none.
-- KEYS[i]: the log of the i-th window, a ZSET of entries scored by stamp; after the windows, for each that has a penalty, the standing of its key, a hash, and its strikes, a ZSET scored by stamp.
-- ARGV[1]: member: the request's UUID, 16 bytes.
-- ARGV[2]: cost: how many places the request takes.
-- ARGV[3]: mode: "new", "repeat" (may have been recorded already) or "peek" (record nothing).
-- ARGV[4]: wants_reset: "1" or "0".
-- ARGV[5]: windows: how many of the keys are windows.
-- ARGV[6...]: for each window: horizon_us (its longest quota) and the number of its quotas, then limit and window_us of each; the limit of one that is reported on and not enforced is negative. After the windows, for each that has a penalty: which window it is, strikes (0 if none is counted), within_us, decay_us, reason, the number of rungs and rung_us of each.
-- Reply[1]: 1 if admitted, 0 if denied.
-- Reply[2]: stamp of the decision in microseconds of the Unix epoch.
-- Reply[3...]: for each quota, remaining, wait_us (0 if it had room), reset_us (0 unless wanted). After the quotas, for each penalty, the ban's wait_us (0 if there is none), and 1 if the request was a strike or 2 if it brought a ban, else 0.
-- Cost: O(log n) a quota and O(1) a key, n the entries of the log or the strikes.
-- TTL: of a window its longest quota and 999 ms, renewed by each recorded request, and by a denial if it would be too short; of strikes within_us, and of a standing until it matters no longer, each and a second.

local call = redis.call
local member, cost, mode, windows = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[5])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

-- What has left the longest window matters to nobody.
local arg = 6
for k = 1, windows do
  call('ZREMRANGEBYSCORE', KEYS[k], '-inf', now_us - ARGV[arg])
  arg = arg + 2 + 2 * ARGV[arg + 1]
end

local recorded_us
if mode == 'repeat' then
  for k = 1, windows do
    recorded_us = recorded_us or call('ZSCORE', KEYS[k], member)
  end
end

local admitted, reply, slot, longest_full_us = 1, { 1, now_us }, 3, {}
arg = 6
for k = 1, windows do
  local key, horizon_us, held = KEYS[k], tonumber(ARGV[arg]), call('ZCARD', KEYS[k])
  local first = arg + 2
  arg = first + 2 * ARGV[arg + 1]
  for q = first, arg - 1, 2 do
    local enforced = tonumber(ARGV[q]) > 0
    local limit, window_us = math.abs(ARGV[q]), tonumber(ARGV[q + 1])
    local used, wait_us = held, 0
    if window_us < horizon_us then
      used = call('ZCOUNT', key, now_us - window_us + 1, '+inf')
    end
    if used + cost > limit and not recorded_us then
      wait_us = window_us
      if cost <= limit then
        -- The request fits once the (limit - cost + 1)-th newest entry has left.
        local rank = cost - limit - 1
        wait_us = call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] + window_us - now_us
      end
      if enforced then
        admitted = 0
        longest_full_us[k] = math.max(longest_full_us[k] or 0, window_us)
      end
    end
    reply[slot], reply[slot + 1], reply[slot + 2] = math.max(limit - used, 0), wait_us, 0
    slot = slot + 3
  end
end

-- Each penalty: a ban stands, or the denial is a strike, or the strike brings a ban. Hammering on a
-- full quota for as long as it is long is one episode, and one strike.
local standing = windows + 1
while standing < #KEYS do
  local key, strikes_key = KEYS[standing], KEYS[standing + 1]
  local full_us, most, within_us = longest_full_us[tonumber(ARGV[arg])], tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local decay_us, reason, rungs = tonumber(ARGV[arg + 3]), ARGV[arg + 4], tonumber(ARGV[arg + 5])
  local known = call('HMGET', key, 'until', 'level', 'episode_until')
  local until_us, level, struck = tonumber(known[1] or 0), tonumber(known[2] or 0), 0
  if until_us > now_us and not recorded_us then
    admitted = 0
  elseif full_us and most > 0 and mode ~= 'peek' and not (known[3] and now_us < tonumber(known[3])) then
    struck = 1
    call('ZREMRANGEBYSCORE', strikes_key, '-inf', now_us - within_us)
    call('ZADD', strikes_key, now_us, member)
    call('PEXPIRE', strikes_key, math.ceil(within_us / 1000) + 1000)
    if call('ZCARD', strikes_key) >= most then
      struck = 2
      call('DEL', strikes_key)
      level = math.max(0, level - math.floor((now_us - until_us) / decay_us))
      until_us = now_us + ARGV[arg + 6 + math.min(level, rungs - 1)]
      level = math.min(level + 1, rungs)
      call('HSET', key, 'until', until_us, 'level', level, 'reason', reason)
    end
    call('HSET', key, 'episode_until', now_us + full_us)
    local over_us = math.max(until_us + level * decay_us, now_us + full_us)
    call('PEXPIRE', key, math.ceil((over_us - now_us) / 1000) + 1000)
  end
  local ban_us = recorded_us and 0 or math.max(until_us - now_us, 0)
  reply[slot], reply[slot + 1], slot = ban_us, struck, slot + 2
  standing, arg = standing + 2, arg + 6 + rungs
end
reply[1] = admitted
if admitted == 0 and mode ~= 'peek' then
  arg = 6
  for k = 1, windows do
    -- Entries recorded under a shorter window matter for as long as this one is.
    local horizon_us, newest_us = tonumber(ARGV[arg]), call('ZRANGE', KEYS[k], -1, -1, 'WITHSCORES')[2]
    if newest_us
        and call('PTTL', KEYS[k]) * 1000 < math.min(newest_us + horizon_us - now_us, horizon_us) then
      call('PEXPIRE', KEYS[k], math.ceil(horizon_us / 1000) + 999)
    end
    arg = arg + 2 + 2 * ARGV[arg + 1]
  end
end
if recorded_us then
  reply[2] = tonumber(recorded_us)
end

local taken = 0
if admitted == 1 and not recorded_us and mode ~= 'peek' then
  taken = cost
  arg = 6
  for k = 1, windows do
    local at_us, ttl_ms = now_us, math.ceil(ARGV[arg] / 1000) + 999
    if call('PTTL', KEYS[k]) > ttl_ms then
      -- The clock may have stepped back: what came later must not leave earlier, nor the log go before.
      local newest_us = tonumber(call('ZRANGE', KEYS[k], -1, -1, 'WITHSCORES')[2])
      if newest_us > now_us then
        at_us, ttl_ms, reply[2] = newest_us, nil, math.max(reply[2], newest_us)
      end
    end
    -- A request of weight n is n entries: the UUID, and the UUID with each number from 2 to n.
    for n = 1, cost do
      call('ZADD', KEYS[k], at_us, n == 1 and member or member .. n)
    end
    if ttl_ms then
      -- 999 ms more than the window, for from 7.2 on Redis counts a TTL from when the script began:
      -- the log must not go before its entries do. As much as in admit.lua, which would else take a
      -- longer TTL for a sign that the clock has stepped back.
      call('PEXPIRE', KEYS[k], ttl_ms)
    end
    arg = arg + 2 + 2 * ARGV[arg + 1]
  end
end

if taken > 0 or ARGV[4] == '1' then
  arg, slot = 6, 3
  for k = 1, windows do
    local first = arg + 2
    arg = first + 2 * ARGV[arg + 1]
    for q = first, arg - 1, 2 do
      reply[slot] = math.max(reply[slot] - taken, 0)
      if ARGV[4] == '1' then
        local window_us = tonumber(ARGV[q + 1])
        local oldest = call('ZRANGE', KEYS[k], now_us - window_us + 1, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2]
        reply[slot + 2] = oldest and oldest + window_us - now_us or 0
      end
      slot = slot + 3
    end
  end
end
return reply
