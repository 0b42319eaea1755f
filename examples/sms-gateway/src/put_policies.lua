-- Purpose: replace the fleet's policies by newer ones, unless another server was faster.
-- KEYS[1]: the policies, a HASH of a policy's text for each level or institution, and their version.
-- ARGV[1]: version: of the newer policies, an integer from 1.
-- ARGV[2]: ttl_ms: how long the policies are kept from now on.
-- ARGV[3...]: the fields of the HASH but for the version, each followed by its text.
-- Reply: 1 if the policies were replaced, 0 if the version there is as high or higher.
-- Cost: O(n), n the fields.
-- TTL: ttl_ms; every server renews it each time it looks.

local call = redis.call
local version, ttl_ms = ARGV[1], ARGV[2]

local held = tonumber(call('HGET', KEYS[1], 'version') or '')
if held and held >= tonumber(version) then
  return 0
end

call('DEL', KEYS[1])
call('HSET', KEYS[1], 'version', version)
local arg = 3
while ARGV[arg] do
  call('HSET', KEYS[1], ARGV[arg], ARGV[arg + 1])
  arg = arg + 2
end
call('PEXPIRE', KEYS[1], ttl_ms)
return 1
