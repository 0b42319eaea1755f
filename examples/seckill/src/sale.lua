--[[
  Changes one SKU: sells a piece of it, takes a payment, or enters a user into the draw. Pieces that are not paid in
  time come back, and in a draw free pieces become turns of those who are first in line. A call handles up to 500 of
  each, and the next one more.

  Keys:
    KEYS[1] stock (string): the number of pieces when the sale was set up, or `lost` if Redis has lost it since
    KEYS[2] buyers (HASH): from the user id to the UUID of the user's order
    KEYS[3] orders (HASH): from the UUID of an order that holds a piece to the user id
    KEYS[4] line (ZSET): users by place: below 2^52 as drawn, and from there on by the time of the entry
    KEYS[5] turns (ZSET): users by the end of their turn, in microseconds since 1970
    KEYS[6] unpaid (ZSET): UUIDs of orders by the time until which they can be paid
    KEYS[7] paid (HASH): from the UUID of the order to the id of the payment
    KEYS[8] returned (HASH): from the UUID of an order that was not paid in time to the user id
    KEYS[9] refunds (HASH): from the id of a payment that has bought nothing to the UUID of the order

  Arguments:
    ARGV[1] op (text): `order`, `pay`, `enter`, `entry` to see where a user is, or `tick` to do what time does
    ARGV[2] opening (microseconds): since 1970; empty if who comes first is served first
    ARGV[3] turn_us (microseconds): how long a turn is; 0 to give none yet
    ARGV[4] pay_us (microseconds): how long an order may stay unpaid; 0 if for ever
    ARGV[5] subject (text): the user id; to `pay` the UUID of the order
    ARGV[6] value (text): to `order` the UUID of the new order, to `pay` the id of the payment, to `enter` the place
      if it is before the opening
    ARGV[7] ticket (microseconds): to `order` in a draw, when the turn ends

  Reply:
    REPLY[1] outcome (text): what `Reply` in stock.rs lists
    REPLY[2] text (text): the UUID of the order that the user has
    REPLY[3] number (number): when the turn ends or the order has to be paid, in microseconds since 1970, or 0; in
      line the place
    REPLY[4] now_us (microseconds): the time of Redis

  Cost: O(log n) for n users in line; up to 500 times as much after many turns or times to pay have ended.
  TTL: none. Orders are kept, and the stock must outlive every restart of the servers.
]]
local call, most = redis.call, 500
local stock, buyers, orders, line, turns = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local unpaid, paid, returned, refunds = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local op, subject, value = ARGV[1], ARGV[5], ARGV[6]
local opening, turn_us, pay_us = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]

local function reply(outcome, text, number)
  return { outcome, text or '', tonumber(number) or 0, now_us }
end

local function has_ended(set)
  return call('ZRANGEBYSCORE', set, '-inf', now_us, 'LIMIT', 0, most)
end

-- Puts pieces that were not paid in time on sale again.
local function take_back()
  for _, order in ipairs(has_ended(unpaid)) do
    local user = call('HGET', orders, order)
    if user then
      call('HDEL', orders, order)
      call('HDEL', buyers, user)
      call('HSET', returned, order, user)
    end
    call('ZREM', unpaid, order)
  end
end

-- Gives a turn to as many as there are free pieces.
local function give_turns()
  if not opening or now_us < opening or turn_us == 0 then
    return
  end
  local over = has_ended(turns)
  if #over > 0 then
    call('ZREM', turns, unpack(over))
  end
  local taken = call('HLEN', orders) + call('ZCOUNT', turns, '(' .. string.format('%.0f', now_us), '+inf')
  local free = math.min((tonumber(call('GET', stock)) or 0) - taken, most)
  if free > 0 then
    local first = call('ZPOPMIN', line, free)
    for at = 1, #first, 2 do
      first[at], first[at + 1] = now_us + turn_us, first[at]
    end
    if #first > 0 then
      call('ZADD', turns, unpack(first))
    end
  end
end

-- Tells where a user of a draw is.
local function state(user)
  local held = call('HGET', buyers, user)
  if held then
    local outcome = call('HGET', paid, held) and 'paid' or 'ordered'
    return outcome, held, call('ZSCORE', unpaid, held)
  end
  local turn_end = tonumber(call('ZSCORE', turns, user))
  if turn_end and turn_end > now_us then
    return 'turn', '', turn_end
  end
  local rank = call('ZRANK', line, user)
  if now_us < opening then
    return rank and 'entered' or 'none', '', opening
  end
  if call('HLEN', orders) >= (tonumber(call('GET', stock)) or 0) and call('ZCARD', unpaid) == 0 then
    return 'over'
  end
  return rank and 'waiting' or 'none', '', (rank or 0) + 1
end

if op == 'pay' then
  local by, user = call('HGET', paid, subject), call('HGET', orders, subject)
  local deadline = tonumber(call('ZSCORE', unpaid, subject))
  if by == value or user and not by and (not deadline or deadline > now_us) then
    -- Also if it is there, so that a WAIT after this call covers it, whichever connection wrote it.
    call('HSET', paid, subject, value)
    call('ZREM', unpaid, subject)
    return reply('paid')
  end
  if not user and not call('HGET', returned, subject) then
    return reply('unknown')
  end
  call('HSET', refunds, value, subject)
  return reply(by and 'already-paid' or 'too-late')
end

if op == 'order' then
  local held = call('HGET', buyers, subject)
  if held then
    -- For the WAIT, as above.
    call('HSET', buyers, subject, held)
    -- The same order again: the reply to the first call was lost.
    return reply(held == value and 'placed' or 'held', held, call('ZSCORE', unpaid, held))
  end
  local pieces = tonumber(call('GET', stock))
  if not pieces then
    return reply('lost')
  end
  if opening then
    local turn_end = tonumber(call('ZSCORE', turns, subject))
    if not turn_end or turn_end ~= tonumber(ARGV[7]) or turn_end <= now_us then
      return reply('turn-over')
    end
  end
  -- The number of sold pieces is the number of orders, so that the two cannot differ.
  local sold = call('HLEN', orders)
  if sold >= pieces then
    take_back()
    sold = call('HLEN', orders)
  end
  -- Every order has a buyer. A Redis that evicts keys may have dropped one of the two.
  if call('HLEN', buyers) ~= sold then
    return reply('lost')
  end
  if sold >= pieces then
    return reply('sold-out')
  end
  call('HSET', buyers, subject, value)
  call('HSET', orders, value, subject)
  if opening then
    call('ZREM', turns, subject)
  end
  if pay_us > 0 then
    call('ZADD', unpaid, now_us + pay_us, value)
  end
  return reply('placed', value, pay_us > 0 and now_us + pay_us)
end

take_back()
if op == 'enter' then
  local outcome = state(subject)
  if outcome == 'none' or outcome == 'entered' or outcome == 'waiting' then
    local place = now_us < opening and value or 4503599627370496 + now_us - opening
    place = call('ZSCORE', line, subject) or place
    -- For the WAIT, as above: to add it again alone changes nothing.
    call('ZREM', line, subject)
    call('ZADD', line, place, subject)
  end
end
give_turns()
if op == 'tick' then
  return reply('done')
end
return reply(state(subject))
