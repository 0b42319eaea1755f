-- Purpose: remove one request from its windows, and no other.
-- KEYS[i]: the log of the i-th window, a ZSET of entries scored by stamp.
-- ARGV[1]: member: the request's UUID, 16 bytes.
-- ARGV[2]: cost: how many places the request took.
-- Reply: how many entries were removed.
-- Cost: O(log n) an entry, n the entries of the log.
-- TTL: unchanged.

local call = redis.call
local member, removed = ARGV[1], 0
for k = 1, #KEYS do
  removed = removed + call('ZREM', KEYS[k], member)
  for n = 2, tonumber(ARGV[2]) do
    removed = removed + call('ZREM', KEYS[k], member .. n)
  end
end
return removed
