--[[
  Sells one piece of an item to a user, unless it is sold out or the user has one already.

  Keys:
    KEYS[1] stock (string): the number of pieces when the sale was set up, or `lost`
      if Redis has lost it since
    KEYS[2] buyers (HASH): from the user id to the UUID of the user's order
    KEYS[3] orders (HASH): from the UUID of the order to the user id

  Arguments:
    ARGV[1] user (UTF-8): the user id
    ARGV[2] order (text): the UUID of the new order

  Reply:
    REPLY[1] outcome (1, 0, -1 or -2): 1 if the order stands, 0 if the user has another one, -1 if
      sold out, -2 if there is no such item, or a part of its records is lost
    REPLY[2] held (text): the UUID of the order that the user has; empty if there is none

  Cost: O(1).
  TTL: none. Orders are kept, and the stock must outlive every restart of the servers.
]]
local call, stock, buyers, orders = redis.call, KEYS[1], KEYS[2], KEYS[3]
local user, order = ARGV[1], ARGV[2]

local held = call('HGET', buyers, user)
if held then
  -- Written again, so that a WAIT after this call covers the order, whichever connection placed it.
  call('HSET', buyers, user, held)
  -- The same order again: the reply to the first call was lost.
  return { held == order and 1 or 0, held }
end

local pieces = tonumber(call('GET', stock))
if not pieces then
  return { -2, '' }
end
-- The number of sold pieces is the number of orders, so that the two cannot differ.
local sold = call('HLEN', orders)
-- Every order has a buyer. A Redis that evicts keys may have dropped one of the two.
if call('HLEN', buyers) ~= sold then
  return { -2, '' }
end
if sold >= pieces then
  return { -1, '' }
end

call('HSET', buyers, user, order)
call('HSET', orders, order, user)
return { 1, order }
