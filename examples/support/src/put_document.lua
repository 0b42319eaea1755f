--[[
  Replaces the policies of the fleet, unless they have another version by now.

  Keys:
    KEYS[1] policies (HASH): the fields `version` and `document`

  Arguments:
    ARGV[1] expected (integer): the version that the policies must have, 0 for no policies
    ARGV[2] version (integer): the version of the new policies
    ARGV[3] document (JSON): the new policies
    ARGV[4] ttl_ms (milliseconds): how long they are kept

  Reply:
    REPLY[1] replaced (0 or 1): whether they were replaced
    REPLY[2] held (integer): the version that the policies have now

  Cost: O(1).
  TTL: ttl_ms. Every server renews it each time it looks for a new version.
]]
local call, policies = redis.call, KEYS[1]
local expected, version, document, ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local held = call('HGET', policies, 'version') or '0'
if held ~= expected then
  return { 0, held }
end
call('HSET', policies, 'version', version, 'document', document)
call('PEXPIRE', policies, ttl_ms)
return { 1, version }
