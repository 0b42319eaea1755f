--[[
  Replaces the policies of the fleet, unless another server has changed them meanwhile.

  Keys:
    KEYS[1] policies (HASH): the version, and for each level, institution or channel its policy, or
      `level` or `removed`, with the version of that change

  Arguments:
    ARGV[1] expected (integer): the version that the policies must have, 0 for no policies
    ARGV[2] version (integer): the version of the new policies, from 1
    ARGV[3] ttl_ms (milliseconds): how long the policies are kept
    ARGV[4...] for each field:
      field (text): the field of the HASH
      value (text): its value

  Reply:
    REPLY replaced (0 or 1): 0 if the policies have another version

  Cost: O(n), n is the number of fields.
  TTL: ttl_ms. Every server renews it each time it reads the policies.
]]
local call, policies = redis.call, KEYS[1]
local expected, version, ttl_ms = tonumber(ARGV[1]), ARGV[2], ARGV[3]

local held = tonumber(call('HGET', policies, 'version') or '') or 0
if held ~= expected then
  return 0
end

call('DEL', policies)
call('HSET', policies, 'version', version)
for a = 4, #ARGV, 2 do
  local field, value = ARGV[a], ARGV[a + 1]
  call('HSET', policies, field, value)
end
call('PEXPIRE', policies, ttl_ms)
return 1
