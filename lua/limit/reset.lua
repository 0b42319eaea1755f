--[[
  Empties a log. The mark that it leaves keeps other processes from writing back old admissions.

  Keys:
    KEYS[1] log (ZSET): the log
    KEYS[2] mark (string): when the log was last reset, in microseconds of the Unix epoch

  Arguments:
    ARGV[1] kept_us (microseconds): how long the log keeps its entries

  Reply:
    REPLY done (1): always 1

  Cost: O(1). Another thread of Redis frees the entries.
  TTL: of the mark the TTL of its log, or kept_us and a second if that is longer. After it
    no admission from before the reset counts any more.
]]
local log, mark, kept_us = KEYS[1], KEYS[2], ARGV[1]
local call = redis.call
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

local ttl_ms = math.max(call('PTTL', log), math.ceil(kept_us / 1000) + 1000)
call('UNLINK', log)
call('SET', mark, now_us, 'PX', ttl_ms)
return 1
