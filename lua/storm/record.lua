-- Purpose: record a message of a group, or only look at the group, and decide whether a storm starts or ends, in one atomic step.
-- KEYS[1]: the log of the group, a ZSET of message ids scored by stamp in microseconds.
-- KEYS[2]: the state of the group, a HASH: of the storm that started last, active ("1" or "0"), since_us, began (the count it started with), start_call, peak, below_us (when the count falls below ends_below if no message comes) and quiet_us (when the last message leaves the window); of the storm that ended last, ended_since_us, until_us, ended_peak and end_call; and offset_us, by how much the stamps are ahead of Redis's clock.
-- ARGV[1]: call: the UUID of the call, 16 bytes; the same if it is made again because its answer was lost.
-- ARGV[2]: mode: "record", or "look" to record nothing.
-- ARGV[3]: id of the message; empty to look.
-- ARGV[4]: window_us: how long a message counts.
-- ARGV[5]: threshold: a storm starts above this count.
-- ARGV[6]: ends_below: a storm ends below this count.
-- ARGV[7]: cap: how many of the newest messages are kept.
-- ARGV[8]: cool_down_us: how long after the end of a storm none starts.
-- Reply[1]: stamp of now in microseconds of the Unix epoch.
-- Reply[2]: count: how many messages the window holds, at most cap.
-- Reply[3]: 1 if the message was in the log already, else 0.
-- Reply[4]: look_us: after how long a storm could start or end if no message comes; 0 if none could.
-- Reply[5]: age in microseconds and peak of the storm that goes on; empty if none does.
-- Reply[6]: if this call has started a storm, how long ago in microseconds, and the count then; else empty.
-- Reply[7]: if this call has ended a storm, how long ago it ended and how long it lasted in microseconds, and its peak; else empty.
-- Cost: O(log n), n the entries of the log.
-- TTL: of the log the window, renewed by each recorded message; of the state a day after the last message of a storm has left the window, an hour after the cool-down, or as long as the log; each and a second.

local call, log, state = redis.call, KEYS[1], KEYS[2]
local window_us, threshold, ends_below = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local cap, cool_down_us = tonumber(ARGV[7]), tonumber(ARGV[8])
local time = call('TIME')
local unix_us = time[1] * 1000000 + time[2]

local held, fields = {}, call('HGETALL', state)
for f = 1, #fields, 2 do
  held[fields[f]] = fields[f + 1]
end
local active, until_us = held.active == '1', tonumber(held.until_us)
local start_call, end_call = held.start_call, held.end_call
local offset_us, now_us, write = tonumber(held.offset_us or 0), nil, {}
local function set(field, value)
  held[field] = value
  write[#write + 1] = field
  write[#write + 1] = value
end

-- The clock may have stepped back. What is here keeps its age and the stamps go on from the newest:
-- else messages would stay in the window for as long as the step was, or leave it before others.
local newest_us = tonumber(call('ZRANGE', log, -1, -1, 'WITHSCORES')[2] or 0)
local latest_us = math.max(newest_us, tonumber(held.since_us or 0), until_us or 0)
now_us = unix_us + offset_us
if now_us < latest_us then
  now_us = latest_us
  set('offset_us', latest_us - unix_us)
end

-- Nothing but time can have ended a storm since the last call: look before anything is added.
local function over_us()
  local least_us = call('ZRANGE', log, -ends_below, -ends_below, 'WITHSCORES')[2]
  return least_us and least_us + window_us
end
if active then
  -- The log may have expired since then.
  local at_us = over_us() or math.min(held.below_us or held.quiet_us, now_us)
  if at_us <= now_us then
    active, end_call, until_us = false, ARGV[1], math.max(at_us, tonumber(held.since_us))
    set('active', '0')
    set('until_us', until_us)
    set('ended_since_us', held.since_us)
    set('ended_peak', held.peak)
    set('end_call', end_call)
  end
end
call('ZREMRANGEBYSCORE', log, '-inf', now_us - window_us)

local added, known = 0, 0
if ARGV[2] == 'record' then
  added = call('ZADD', log, 'NX', now_us, ARGV[3])
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
  active, start_call, added = true, ARGV[1], 1
  set('active', '1')
  set('since_us', now_us)
  set('began', count)
  set('peak', 0)
  set('start_call', start_call)
end
local look_us = 0
if active then
  local below_us = over_us() or now_us
  if added == 1 then
    set('peak', math.max(tonumber(held.peak), count))
    set('below_us', below_us)
    set('quiet_us', newest_us + window_us)
  end
  look_us = math.max(below_us - now_us, 1)
elseif count > threshold then
  look_us = cool_us
end

if #write > 0 then
  call('HSET', state, unpack(write))
end
if #write > 0 or (added == 1 and offset_us > 0) then
  -- A stamp must not be forgotten to be ahead of the clock before it has left.
  local ttl_us = window_us
  if active then
    ttl_us = held.quiet_us - now_us + 24 * 3600 * 1000000
  elseif until_us then
    ttl_us = math.max(window_us, cool_us + 3600 * 1000000)
  end
  call('PEXPIRE', state, math.ceil(ttl_us / 1000) + 1000)
end

local storm, started, ended = {}, {}, {}
if active then
  storm = { now_us - held.since_us, tonumber(held.peak) }
end
if start_call == ARGV[1] then
  started = { now_us - held.since_us, tonumber(held.began) }
end
if end_call == ARGV[1] then
  local lasted_us = held.until_us - held.ended_since_us
  ended = { now_us - held.until_us, lasted_us, tonumber(held.ended_peak) }
end
return { unix_us, count, known, look_us, storm, started, ended }
