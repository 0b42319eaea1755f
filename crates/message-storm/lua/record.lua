--[[
  Records a message of a group, or only looks at the group. Decides whether a storm starts or ends,
  and which call reminds of one that goes on.

  Keys:
    KEYS[1] log (ZSET): the messages of the group; the score is the timestamp in microseconds
    KEYS[2] state (HASH): the state of the group
      of the storm that started last: active (1 or 0), since_us, began (the count at its start),
      start_call, peak, below_us (when the count falls below ends_below if no message comes),
      quiet_us (when the last message leaves the window)
      of the last reminder: reminded_us (when it was due), reminded_lasted_us (how long the storm
      had lasted then), reminded_count, reminded_peak, remind_call
      of the storm that ended last: ended_since_us, until_us, ended_peak, end_call
      of both: offset_us (how far the timestamps are ahead of the clock of Redis)

  Arguments:
    ARGV[1] call_id (16 bytes): the UUID of the call; a call that is repeated keeps it
    ARGV[2] mode (word): record; look, to record nothing
    ARGV[3] message (bytes): the id of the message; empty to look
    ARGV[4] window_us (microseconds): how long a message counts
    ARGV[5] threshold (messages): a storm starts above this count
    ARGV[6] ends_below (messages): a storm ends below this count
    ARGV[7] cap (messages): how many of the newest messages the log keeps
    ARGV[8] cool_down_us (microseconds): how long after a storm none starts
    ARGV[9] remind_us (microseconds): the time between reminders of a storm; 0 for none

  Reply:
    REPLY[1] now_us (microseconds of the Unix epoch): the timestamp of the reply
    REPLY[2] count (messages): how many are in the window, at most cap
    REPLY[3] known (0 or 1): 1 if the message was in the log already
    REPLY[4] look_us (microseconds): when a storm can start or end if no message comes, or a
      reminder is due; 0 if none can
    REPLY[5] storm (array): empty if no storm goes on; else
      age_us (microseconds): how long it has gone on
      peak (messages): its highest count
    REPLY[6] started (array): empty unless this call started a storm; else
      ago_us (microseconds): how long ago it started
      count (messages): the count at its start
    REPLY[7] ended (array): empty unless this call ended a storm; else
      ago_us (microseconds): how long ago it ended
      lasted_us (microseconds): how long it lasted
      peak (messages): its highest count
    REPLY[8] ongoing (array): empty unless this call reminds of a storm; else
      ago_us (microseconds): how long ago the reminder was due
      lasted_us (microseconds): how long the storm had lasted then
      count (messages): the count at the reminder
      peak (messages): the highest count at the reminder

  Cost: O(log n), n is the number of entries in the log.
  TTL: of the log the window and a second; a recorded message renews it. Of the state a second more
    than: in a storm a day after its last message leaves the window; after a storm the window, or
    an hour after the cool-down if that is later; else the window.
]]
local call, log, state = redis.call, KEYS[1], KEYS[2]
local call_id, mode, message = ARGV[1], ARGV[2], ARGV[3]
local window_us, threshold, ends_below = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local cap, cool_down_us, remind_us = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local time = call('TIME')
local unix_us = time[1] * 1000000 + time[2]

local held, fields = {}, call('HGETALL', state)
for f = 1, #fields, 2 do
  held[fields[f]] = fields[f + 1]
end
local active, until_us = held.active == '1', tonumber(held.until_us)
local start_call, end_call, remind_call = held.start_call, held.end_call, held.remind_call
local offset_us, now_us, write = tonumber(held.offset_us or 0), nil, {}
local function set(field, value)
  held[field] = value
  write[#write + 1] = field
  write[#write + 1] = value
end

-- The clock may have stepped back. Then the timestamps go on from the newest one, and `offset_us`
-- keeps the difference. Otherwise old messages would stay in the window for as long as the step, or
-- new messages would leave it first.
local newest_us = tonumber(call('ZRANGE', log, -1, -1, 'WITHSCORES')[2] or 0)
local reminded_us = tonumber(held.reminded_us or 0)
local latest_us = math.max(newest_us, tonumber(held.since_us or 0), until_us or 0, reminded_us)
now_us = unix_us + offset_us
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
  -- If the log has expired, the state still knows when the storm ended.
  local at_us = below_at_us() or math.min(held.below_us or held.quiet_us, now_us)
  if at_us <= now_us then
    active, end_call, until_us = false, call_id, math.max(at_us, tonumber(held.since_us))
    set('active', '0')
    set('until_us', until_us)
    set('ended_since_us', held.since_us)
    set('ended_peak', held.peak)
    set('end_call', end_call)
  end
end
call('ZREMRANGEBYSCORE', log, '-inf', now_us - window_us)

local added, known = 0, 0
if mode == 'record' then
  added = call('ZADD', log, 'NX', now_us, message)
  known = 1 - added
end
local count = call('ZCARD', log)
if added == 1 then
  newest_us = now_us
  call('PEXPIRE', log, math.ceil(window_us / 1000) + 1000)
  if count > cap then
    call('ZREMRANGEBYRANK', log, 0, count - cap - 1)
    count = cap
  end
end

local cool_us = until_us and math.max(until_us + cool_down_us - now_us, 0) or 0
if not active and count > threshold and cool_us == 0 then
  active, start_call, added = true, call_id, 1
  set('active', '1')
  set('since_us', now_us)
  set('began', count)
  set('peak', 0)
  set('start_call', start_call)
end
local look_us = 0
if active then
  local below_us = below_at_us() or now_us
  if added == 1 then
    set('peak', math.max(tonumber(held.peak), count))
    set('below_us', below_us)
    set('quiet_us', newest_us + window_us)
  end
  look_us = math.max(below_us - now_us, 1)
  if remind_us > 0 then
    local lasted_us = now_us - held.since_us
    local last_us = math.max(tonumber(held.since_us), reminded_us)
    if now_us - last_us >= remind_us then
      -- Only the latest of those that are due.
      lasted_us = lasted_us - lasted_us % remind_us
      last_us, remind_call = held.since_us + lasted_us, call_id
      set('reminded_us', last_us)
      set('reminded_lasted_us', lasted_us)
      set('reminded_count', count)
      set('reminded_peak', held.peak)
      set('remind_call', remind_call)
    end
    look_us = math.min(look_us, last_us + remind_us - now_us)
  end
elseif count > threshold then
  look_us = cool_us
end

if #write > 0 then
  call('HSET', state, unpack(write))
end
if #write > 0 or (added == 1 and offset_us > 0) then
  -- `offset_us` must live until the last timestamp that is ahead of the clock leaves the window.
  local ttl_us = window_us
  if active then
    ttl_us = held.quiet_us - now_us + 24 * 3600 * 1000000
  elseif until_us then
    ttl_us = math.max(window_us, cool_us + 3600 * 1000000)
  end
  call('PEXPIRE', state, math.ceil(ttl_us / 1000) + 1000)
end

local storm, started, ended, ongoing = {}, {}, {}, {}
if active then
  storm = { now_us - held.since_us, tonumber(held.peak) }
end
if start_call == call_id then
  started = { now_us - held.since_us, tonumber(held.began) }
end
if end_call == call_id then
  local lasted_us = held.until_us - held.ended_since_us
  ended = { now_us - held.until_us, lasted_us, tonumber(held.ended_peak) }
end
if remind_call == call_id then
  local ago_us, lasted_us = now_us - held.reminded_us, tonumber(held.reminded_lasted_us)
  ongoing = { ago_us, lasted_us, tonumber(held.reminded_count), tonumber(held.reminded_peak) }
end
return { unix_us, count, known, look_us, storm, started, ended, ongoing }
