--[[
  Records a message of a group, or only looks at the group. Decides whether a storm starts or ends.

  Keys:
    KEYS[1] log (ZSET): the messages of the group; the score is the timestamp in microseconds
    KEYS[2] state (HASH): the state of the group
      of the storm that started last: active (1 or 0), since_us, began (the count at its start),
      start_call, peak
      of the storm that ended last: ended_since_us, until_us, ended_peak, end_call
      of both: offset_us (how far the timestamps are ahead of the clock of Redis)

  Arguments:
    ARGV[1] call_id (16 bytes): the UUID of the call; a call that is repeated keeps it
    ARGV[2] window_us (microseconds): how long a message counts
    ARGV[3] threshold (messages): a storm starts above this count
    ARGV[4] ends_below (messages): a storm ends below this count
    ARGV[5] cap (messages): how many of the newest messages the log keeps
    ARGV[6] message (bytes): the id of the message; missing to look and record nothing

  Reply:
    REPLY[1] unix_us (microseconds of the Unix epoch): the time of the reply
    REPLY[2] count (messages): how many are in the window, at most cap
    REPLY[3] look_us (microseconds): when the storm can end if no message comes; 0 if there is none
    REPLY[4] storm (array): empty if no storm goes on; else
      age_us (microseconds): how long it has gone on
      peak (messages): its highest count
    REPLY[5] started (array): empty unless this call started a storm; else
      ago_us (microseconds): how long ago it started
      count (messages): the count at its start
    REPLY[6] ended (array): empty unless this call ended a storm; else
      ago_us (microseconds): how long ago it ended
      lasted_us (microseconds): how long it lasted
      peak (messages): its highest count

  Cost: O(log n), n is the number of entries in the log. A call removes at most 256 messages that have left the
    window, for Redis stands still meanwhile, and counts without the rest.
  TTL: of both the window and a second; a recorded message renews it. In a storm a day more, so that the log
    tells when the storm ended. Of the state after a storm at least an hour.
]]
local call, log, state = redis.call, KEYS[1], KEYS[2]
local call_id, window_us, threshold = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local ends_below, cap = tonumber(ARGV[4]), tonumber(ARGV[5])
local message, most_expired = ARGV[6], 256
local time = call('TIME')
local unix_us = time[1] * 1000000 + time[2]

local held, write, fields = {}, {}, call('HGETALL', state)
for f = 1, #fields, 2 do
  held[fields[f]] = fields[f + 1]
end
local function set(field, value)
  held[field] = value
  write[#write + 1] = field
  write[#write + 1] = value
end
local active, until_us, changes = held.active == '1', tonumber(held.until_us), false

-- The clock may have stepped back. Then the timestamps go on from the newest one, and `offset_us`
-- keeps the difference. Otherwise old messages would stay in the window for as long as the step, or
-- new messages would leave it first.
local newest_us = tonumber(call('ZRANGE', log, -1, -1, 'WITHSCORES')[2] or 0)
local latest_us = math.max(newest_us, tonumber(held.since_us or 0), until_us or 0)
local now_us = unix_us + (held.offset_us or 0)
if now_us < latest_us then
  now_us = latest_us
  set('offset_us', latest_us - unix_us)
end

-- A storm can end between two calls, when messages leave the window. Find that out before the new
-- message is added.
local function below_at_us()
  local oldest_us = call('ZRANGE', log, -ends_below, -ends_below, 'WITHSCORES')[2]
  return oldest_us and oldest_us + window_us
end
if active then
  local at_us = below_at_us() or now_us
  if at_us <= now_us then
    active, changes, until_us = false, true, math.max(at_us, tonumber(held.since_us))
    set('active', '0')
    set('until_us', until_us)
    set('ended_since_us', held.since_us)
    set('ended_peak', held.peak)
    set('end_call', call_id)
  end
end
local expired = call('ZCOUNT', log, '-inf', now_us - window_us)
if expired > 0 then
  expired = expired - call('ZREMRANGEBYRANK', log, 0, math.min(expired, most_expired) - 1)
end

local added = false
if message then
  if expired > 0 and tonumber(call('ZSCORE', log, message) or now_us) <= now_us - window_us then
    expired = expired - call('ZREM', log, message)
  end
  added = call('ZADD', log, 'NX', now_us, message) == 1
end
local count = call('ZCARD', log) - expired
if added and count > cap then
  call('ZREMRANGEBYRANK', log, 0, math.min(count - cap, most_expired) - 1)
end
count = math.min(count, cap)

local look_us = 0
changes = changes or added
if not active and count > threshold then
  active, changes = true, true
  set('active', '1')
  set('since_us', now_us)
  set('began', count)
  set('peak', 0)
  set('start_call', call_id)
end
if active then
  if changes then
    set('peak', math.max(tonumber(held.peak), count))
  end
  look_us = math.max((below_at_us() or now_us) - now_us, 1)
end

local ttl_us = window_us
if active then
  ttl_us = window_us + 24 * 3600 * 1000000
end
if changes then
  call('PEXPIRE', log, math.ceil(ttl_us / 1000) + 1000)
end
if #write > 0 then
  call('HSET', state, unpack(write))
end
if #write > 0 or (added and held.offset_us) then
  -- `offset_us` must live until the last timestamp that is ahead of the clock leaves the window.
  if until_us then
    ttl_us = math.max(ttl_us, 3600 * 1000000)
  end
  call('PEXPIRE', state, math.ceil(ttl_us / 1000) + 1000)
end

-- A call that is repeated gets its events again.
local storm, started, ended = {}, {}, {}
if active then
  storm = { now_us - held.since_us, tonumber(held.peak) }
end
if held.start_call == call_id then
  started = { now_us - held.since_us, tonumber(held.began) }
end
if held.end_call == call_id then
  local lasted_us = held.until_us - held.ended_since_us
  ended = { now_us - held.until_us, lasted_us, tonumber(held.ended_peak) }
end
return { unix_us, count, look_us, storm, started, ended }
