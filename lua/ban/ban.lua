--[[
  Imposes a ban on a key, and returns the ban that stands afterwards. Leaves a longer ban as it is.
  Does not impose a ban that was lifted after it was seen. One by strikes removes the strikes.

  Keys:
    KEYS[1] record (HASH): the ban record: until, level, reason, episode_until, and length, as the ban was
      imposed; 0 for one by strikes
    KEYS[2] strikes (ZSET): the strikes
    KEYS[3] mark (string): when the key's ban was last lifted, as lift.lua leaves it

  Arguments:
    ARGV[1] duration_us (microseconds): how long the ban lasts from now; 0 to only look
    ARGV[2] reason (bytes): why the key is banned
    ARGV[3] decay_us (microseconds): after how long without a ban the level falls by one; 0 without
      a penalty
    ARGV[4] seen_us (microseconds): how long ago the ban was last seen to stand; 0 for one that is imposed now
    ARGV[5] only_longer (0 or 1): 1 to impose no ban while one stands that was imposed for as long
    ARGV[6] length_us (microseconds): how long the ban was when it was imposed; 0 for one by strikes
    ARGV[7] level (count): the level that the key has at least

  Reply:
    REPLY[1] wait_us (microseconds): how long the ban that stands still lasts; 0 if there is none
    REPLY[2] outcome (2, 1, 0 or -1): 1 if the ban was imposed, 2 if it was and made another one longer, -1
      if it was lifted since, 0 otherwise
    REPLY[3] reason (bytes): the reason of the ban that stands; empty if there is none

  Cost: O(n), n is the number of strikes.
  TTL: a second more than the time until the ban and its levels are over. It never becomes shorter.
]]
local call, record, strikes, mark = redis.call, KEYS[1], KEYS[2], KEYS[3]
local duration_us, reason, decay_us = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local seen_us, only_longer, length_us = tonumber(ARGV[4]), ARGV[5] == '1', tonumber(ARGV[6])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

local known = call('HMGET', record, 'until', 'level', 'reason', 'length')
local until_us, level = tonumber(known[1] or 0), tonumber(known[2] or 0)
local known_reason = known[3] or ''

local lifted = 0
local lifted_us = tonumber(call('GET', mark) or -1)
-- If it is later than now, the clock has stepped back, and the ban stands.
if seen_us > 0 and lifted_us >= now_us - seen_us and lifted_us <= now_us then
  duration_us, lifted = 0, -1
end
local wanted_us = now_us + duration_us
local stands = until_us > now_us
local is_covered = only_longer and stands and duration_us <= tonumber(known[4] or 0)
-- What a process has seen of this very ban differs by a round trip, and may lack its reason.
is_covered = is_covered or stands and seen_us > 0 and wanted_us < until_us + 1000000
if duration_us > 0 and wanted_us > until_us and not is_covered then
  if decay_us > 0 and now_us > until_us then
    -- The level falls with the time since the last ban. Store that before `until` changes.
    level = math.max(0, level - math.floor((now_us - until_us) / decay_us))
  end
  level = math.max(level, tonumber(ARGV[7]))
  if length_us == 0 then
    call('DEL', strikes)
  end
  call('HSET', record, 'until', wanted_us, 'level', level, 'reason', reason, 'length', length_us)
  local ttl_ms = math.ceil((duration_us + level * decay_us) / 1000) + 1000
  if call('PTTL', record) < ttl_ms then
    call('PEXPIRE', record, ttl_ms)
  end
  return { duration_us, stands and 2 or 1, reason }
end
if not stands then
  return { 0, lifted, '' }
end
if seen_us > 0 and lifted == 0 and length_us > tonumber(known[4] or 0)
  and math.abs(wanted_us - until_us) < 1000000 then
  -- A process that had only met this ban has restored it, and knew neither its reason nor its length.
  call('HSET', record, 'reason', reason, 'length', length_us)
  known_reason = reason
end
return { until_us - now_us, lifted, known_reason }
