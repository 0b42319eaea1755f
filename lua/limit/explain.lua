--[[
  Reads a log and the ban record of its key. Changes nothing.

  Keys:
    KEYS[1] log (ZSET): the log, as in admit.lua. A peek has just left the sums of a budget
    KEYS[2] record (HASH): the ban record: until, level, reason, episode_until, length
    KEYS[3] strikes (ZSET): the strikes; the score of a strike is its timestamp in microseconds

  Arguments:
    ARGV[1] cost (places): how many places the request would take
    ARGV[2] most (count): how many entries of each window are listed at most, and how many strikes
    ARGV[3] within_us (microseconds): how long a strike counts; 0 if strikes are not counted
    ARGV[4] value (16 bytes): the value of the request if the log counts distinct values, or empty
    ARGV[5] is_budget (0 or 1): whether the log is a budget
    ARGV[6...] for each quota:
      limit (places): how many the quota allows
      window_us (microseconds): the length of the window

  Reply:
    REPLY[1] now_us (microseconds of the Unix epoch): the timestamp of the reply
    REPLY[2] ban (array): until, level, reason and episode_until of the ban record, each null if
      there is none
    REPLY[3] struck (array): the strikes that count, oldest first, each with its timestamp
    REPLY[4...] for each quota:
      taken (places): how many places the entries in the window take
      must_leave (array): the newest entry that has to leave before the request fits, with its
        timestamp; it may have left already; empty if there is none
      oldest (array): the oldest entries in the window, each with its timestamp
      costs (array): the cost of each of these entries; empty unless the log is a budget

  Cost: O(log n + most) for each quota, n is the number of entries in the log or of strikes. The wait of a denial
    by a budget is found as in admit.lua.
  TTL: unchanged.
]]
local call, log, record, strikes = redis.call, KEYS[1], KEYS[2], KEYS[3]
local most, within_us, value = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local held_us = value ~= '' and tonumber(call('ZSCORE', log, value) or nil)

local ban, struck = call('HMGET', record, 'until', 'level', 'reason', 'episode_until'), {}
if within_us > 0 then
  local since_us = now_us - within_us + 1
  struck = call('ZRANGE', strikes, since_us, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
end

local sum, windows = nil, {}
if ARGV[5] == '1' then
  local first = call('ZRANGE', log, 0, 0, 'WITHSCORES')
  sum = first[1] and -1 - first[2] or 0
  windows = { struct.unpack('>' .. string.rep('d', #(first[1] or '') / 8), first[1] or '') }
end

local function cost_in(entry)
  return struct.unpack('>d', entry, #entry - 7)
end

-- Returns entries of a budget with their timestamps, and their costs with what was settled, which is next to its entry.
local function listed(found)
  local entries, costs = {}, {}
  for i = 1, #found, 2 do
    local entry, n = found[i], #costs
    if #entry == 32 then
      costs[n] = costs[n] + cost_in(entry)
    elseif n == most then
      break
    else
      entries[2 * n + 1], entries[2 * n + 2], costs[n + 1] =
        string.sub(entry, 1, 16), found[i + 1], cost_in(entry)
    end
  end
  return entries, costs
end

local reply, slot = { now_us, ban, struck }, 4
for arg = 6, #ARGV, 2 do
  local limit, window_us, must_leave = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), {}
  local cost = tonumber(ARGV[1])
  if held_us and held_us + window_us > now_us then
    cost = 0
  end
  local since_us = math.max(now_us - window_us + 1, 0)
  local oldest =
    call('ZRANGE', log, since_us, '+inf', 'BYSCORE', 'LIMIT', 0, sum and 2 * most or most, 'WITHSCORES')
  local taken, costs = 0, {}
  if sum then
    -- The sum of the window, without what has left since.
    local until_us = -1
    taken = sum
    for i = 1, #windows - 1, 3 do
      if windows[i] == window_us then
        taken, until_us = sum - windows[i + 1], windows[i + 2]
      end
    end
    local from = string.format('(%d', until_us)
    for _, entry in ipairs(call('ZRANGE', log, from, since_us - 1, 'BYSCORE', 'LIMIT', 0, 4096)) do
      taken = taken - cost_in(entry)
    end
    oldest, costs = listed(oldest)
    local excess, first, count = cost <= limit and taken + cost - limit or 0, 0, 4
    local is_found = excess <= 0
    while not is_found and first < 4096 do
      local found =
        call('ZRANGE', log, since_us, '+inf', 'BYSCORE', 'LIMIT', first, count, 'WITHSCORES')
      for i = 1, #found, 2 do
        is_found = excess <= 0 and #found[i] == 24
        if is_found then
          break
        end
        excess = excess - cost_in(found[i])
        must_leave = { string.sub(found[i], 1, 16), found[i + 1] }
      end
      is_found = is_found or #found < 2 * count
      first, count = first + count, first + count
    end
    if not is_found then
      local newest = call('ZRANGE', log, -1, -1, 'WITHSCORES')
      must_leave = { string.sub(newest[1], 1, 16), newest[2] }
    end
  else
    taken = call('ZCOUNT', log, since_us, '+inf')
    if cost <= limit then
      -- The request fits as soon as the (limit - cost + 1)-th newest entry has left the window.
      local rank = cost - limit - 1
      must_leave = call('ZRANGE', log, rank, rank, 'WITHSCORES')
    end
  end
  reply[slot], reply[slot + 1], reply[slot + 2], reply[slot + 3] = taken, must_leave, oldest, costs
  slot = slot + 4
end
return reply
