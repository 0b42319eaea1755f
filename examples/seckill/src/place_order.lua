-- Purpose: sell one piece of a SKU to a user, unless it is sold out or the user has one already.
-- KEYS[1]: the stock of the SKU, an integer: how many pieces there were when the sale was set up.
-- KEYS[2]: the buyers of the SKU, a HASH from user id to the UUID of the user's order.
-- KEYS[3]: the orders of the SKU, a HASH from the order's UUID to the user id.
-- ARGV[1]: user: the user id, UTF-8.
-- ARGV[2]: order: the UUID of the order to be, as text.
-- Reply[1]: 1 if the order stands, 0 if the user has another one, -1 if sold out, -2 if no such SKU.
-- Reply[2]: the UUID of the order that the user has, as text; empty if none.
-- Cost: O(1).
-- TTL: none: orders are records to be kept, and the stock must outlive every restart of the servers.

local call = redis.call
local user, order = ARGV[1], ARGV[2]

local held = call('HGET', KEYS[2], user)
if held then
  -- The very same order again: the answer to the first call was lost on its way.
  return { held == order and 1 or 0, held }
end

local stock = call('GET', KEYS[1])
if not stock then
  return { -2, '' }
end
-- What is sold is counted from the orders themselves, so the two can never disagree.
if call('HLEN', KEYS[3]) >= tonumber(stock) then
  return { -1, '' }
end

call('HSET', KEYS[2], user, order)
call('HSET', KEYS[3], order, user)
return { 1, order }
