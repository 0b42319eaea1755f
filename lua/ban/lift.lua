--[[
  Removes a key's ban, strikes and level. The mark that it leaves keeps other processes from
  imposing the ban again.

  Keys:
    KEYS[1] record (HASH): the ban record: until, level, reason, episode_until, length
    KEYS[2] strikes (ZSET): the strikes
    KEYS[3] mark (string): when the key's ban was last lifted, in microseconds of the Unix epoch

  Arguments:
    ARGV[1] longest_ms (milliseconds): how long a ban can be. Another process may know of one that Redis has lost

  Reply:
    REPLY removed (keys): how many of the ban record and the strikes were there

  Cost: O(n), n is the number of strikes.
  TTL: of the mark the longest ban.
]]
local call, record, strikes, mark = redis.call, KEYS[1], KEYS[2], KEYS[3]
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

local removed = call('DEL', record, strikes)
call('SET', mark, now_us, 'PX', ARGV[1])
return removed
