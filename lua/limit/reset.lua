--[[
  Empties logs. The mark that it leaves keeps other processes from writing back old admissions.

  Keys:
    KEYS[i] for each log:
      log (ZSET): the log
      mark (string): when the log was last reset, in microseconds of the Unix epoch

  Arguments:
    ARGV[1...] for each log:
      horizon_us (microseconds): the longest window of its quotas

  Reply:
    REPLY done (1): always 1

  Cost: O(n), n is the number of entries in the logs.
  TTL: of a mark the TTL of its log, or the longest window and 999 ms if that is longer. After it
    no admission from before the reset is in a window of this policy, or of one that used the log.
]]
local call = redis.call
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

for k = 1, #ARGV do
  local log, mark, horizon_us = KEYS[2 * k - 1], KEYS[2 * k], ARGV[k]
  local ttl_ms = math.max(call('PTTL', log), math.ceil(horizon_us / 1000) + 999)
  call('DEL', log)
  call('SET', mark, now_us, 'PX', ttl_ms)
end
return 1
