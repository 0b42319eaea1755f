--[[
  Replaces the policies of the fleet by newer ones, unless newer ones are there already.

  Keys:
    KEYS[1] policies (HASH): the version, and for each level, institution or channel its policy, or
      `level` or `removed`

  Arguments:
    ARGV[1] version (integer): the version of the newer policies, from 1
    ARGV[2] ttl_ms (milliseconds): how long the policies are kept
    ARGV[3...] for each policy:
      field (text): the field of the HASH
      policy (text): the policy, or `level` or `removed`

  Reply:
    REPLY replaced (0 or 1): 0 if the version that is there is as high or higher

  Cost: O(n), n is the number of fields.
  TTL: ttl_ms. Every server renews it each time it reads the policies.
]]
local call, policies, version, ttl_ms = redis.call, KEYS[1], ARGV[1], ARGV[2]

local held = tonumber(call('HGET', policies, 'version') or '')
if held and held >= tonumber(version) then
  return 0
end

call('DEL', policies)
call('HSET', policies, 'version', version)
for a = 3, #ARGV, 2 do
  local field, policy = ARGV[a], ARGV[a + 1]
  call('HSET', policies, field, policy)
end
call('PEXPIRE', policies, ttl_ms)
return 1
