--[[
  Removes a key's ban, strikes and level. The mark that it leaves keeps other processes from
  imposing the ban again.

  Keys:
    KEYS[1] record (HASH): the ban record: until, level, reason, episode_until, length
    KEYS[2] strikes (ZSET): the strikes
    KEYS[3] mark (string): when the key's ban was last lifted, in microseconds of the Unix epoch

  Arguments:
    ARGV[1] longest_us (microseconds): how long a ban of the policy can be

  Reply:
    REPLY removed (keys): how many of the ban record and the strikes were there

  Cost: O(n), n is the number of strikes.
  TTL: of the mark the TTL of the ban record, or the longest ban and a second if that is longer. It never becomes
    shorter.
]]
local call, record, strikes, mark = redis.call, KEYS[1], KEYS[2], KEYS[3]
local longest_us = ARGV[1]
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

local ttl_ms = math.max(call('PTTL', mark), call('PTTL', record), math.ceil(longest_us / 1000) + 1000)
local removed = call('DEL', record, strikes)
call('SET', mark, now_us, 'PX', ttl_ms)
return removed
