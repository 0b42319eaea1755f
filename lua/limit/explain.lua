--[[
  Reads a log and the ban record of its key. Changes nothing.

  Keys:
    KEYS[1] log (ZSET): the log; the score of an entry is its timestamp in microseconds
    KEYS[2] record (HASH): the ban record: until, level, reason, episode_until, length
    KEYS[3] strikes (ZSET): the strikes; the score of a strike is its timestamp in microseconds
    KEYS[4] costs (HASH): the cost of each entry, if the log is a budget; its sums as a peek of admit.lua has
      just left them

  Arguments:
    ARGV[1] cost (places): how many places the request would take
    ARGV[2] most (count): how many entries of each window are listed at most, and how many strikes
    ARGV[3] within_us (microseconds): how long a strike counts; 0 if strikes are not counted
    ARGV[4] value (16 bytes): the value of the request if the log counts distinct values, or empty
    ARGV[5...] for each quota:
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
local call, log, record, strikes, costs = redis.call, KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local most, within_us, value = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local held_us = value ~= '' and tonumber(call('ZSCORE', log, value) or nil)

local ban, struck = call('HMGET', record, 'until', 'level', 'reason', 'episode_until'), {}
if within_us > 0 then
  local since_us = now_us - within_us + 1
  struck = call('ZRANGE', strikes, since_us, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
end

local sums = {}
if costs then
  local packed = call('HGET', costs, '') or struct.pack('>ddd', 0, -1, 0)
  sums = { struct.unpack('>' .. string.rep('d', #packed / 8), packed) }
  sums[#sums] = nil
end

local function costs_of(members)
  local of = #members > 0 and call('HMGET', costs, unpack(members)) or {}
  for i = 1, #of do
    of[i] = tonumber(of[i] or 0)
  end
  return of
end

local reply, slot = { now_us, ban, struck }, 4
for arg = 5, #ARGV, 2 do
  local limit, window_us, must_leave = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), {}
  local cost = tonumber(ARGV[1])
  if held_us and held_us + window_us > now_us then
    cost = 0
  end
  local since_us = now_us - window_us + 1
  local oldest = call('ZRANGE', log, since_us, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  local taken, listed = 0, {}
  if costs then
    -- The sum of the window, or of all entries, without what has left since.
    local until_us = -1
    taken = sums[1]
    for at = 3, #sums, 3 do
      if sums[at] == window_us and sums[at + 2] >= sums[2] then
        taken, until_us = sums[at + 1], sums[at + 2]
      end
    end
    local left =
      call('ZRANGE', log, string.format('(%d', until_us), since_us - 1, 'BYSCORE', 'LIMIT', 0, 4096)
    for _, of in ipairs(costs_of(left)) do
      taken = taken - of
    end
    for i = 1, #oldest, 2 do
      listed[#listed + 1] = oldest[i]
    end
    listed = costs_of(listed)
    local excess, first, count = cost <= limit and taken + cost - limit or 0, 0, 4
    while excess > 0 and first < 4096 do
      local found = call('ZRANGE', log, since_us, '+inf', 'BYSCORE', 'LIMIT', first, count)
      for i, of in ipairs(costs_of(found)) do
        excess = excess - of
        if excess <= 0 then
          must_leave = { found[i], call('ZSCORE', log, found[i]) }
          break
        end
      end
      first, count = first + count, first + count
    end
    if excess > 0 then
      must_leave = call('ZRANGE', log, -1, -1, 'WITHSCORES')
    end
  else
    taken = call('ZCOUNT', log, since_us, '+inf')
    if cost <= limit then
      -- The request fits as soon as the (limit - cost + 1)-th newest entry has left the window.
      local rank = cost - limit - 1
      must_leave = call('ZRANGE', log, rank, rank, 'WITHSCORES')
    end
  end
  reply[slot], reply[slot + 1], reply[slot + 2], reply[slot + 3] = taken, must_leave, oldest, listed
  slot = slot + 4
end
return reply
