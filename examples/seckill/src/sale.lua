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
    KEYS[10] payments (HASH): from the id of a payment to the UUID of the order that it has paid
    KEYS[11] draw (string): the seed of the draw, or what says that there is none

  Arguments:
    ARGV[1] op (text): `order`, `pay`, `enter`, `entry` to see where a user is, or `tick` to do what time does
    ARGV[2] opening (microseconds): since 1970; empty if who comes first is served first
    ARGV[3] turn_us (microseconds): how long a turn is; 0 to give none yet
    ARGV[4] pay_us (microseconds): how long an order may stay unpaid
    ARGV[5] told (count): how many orders and payments there were, as far as a server was told
    ARGV[6] subject (text): the user id; to `pay` the UUID of the order; to `tick` what the draw must be
    ARGV[7] value (text): to `order` the UUID of the new order, to `pay` the id of the payment, to `enter` the place
      if it is before the opening, to `tick` the last order or payment that the server was told of, or empty
    ARGV[8] more (text): to `order` in a draw, when the turn of the ticket ends, in microseconds; to `pay` 1 to keep a
      payment that has bought nothing, and 0 if nobody vouches for it
    ARGV[9] waits (0 or 1): 1 if changes wait for replicas

  Reply:
    REPLY[1] outcome (text): what `Reply` in stock.rs lists
    REPLY[2] text (text): the UUID of the order that the user has; to `tick` why Redis takes no writes, if so
    REPLY[3] number (number): when the turn ends or the order has to be paid, in microseconds since 1970, or 0; in
      line the place
    REPLY[4] now_us (microseconds): the time of Redis
    REPLY[5] news_us (microseconds): in line at the k-th place, about when the k-th of the running turns and times to
      pay ends, and no later, since 1970; 0 if there are not so many
    REPLY[6] history (count): how many orders and payments there ever were
    REPLY[7] level (list of counts): to `tick` the pieces, those that orders hold, those that are paid, the users in line,
      and the turns
    REPLY[8] replication (text): what Redis says of its replicas, if changes wait for them; empty to `entry`, and while
      Redis takes no writes

  Cost: O(log n) for n users in line; up to 500 times as much after many turns or times to pay have ended.
  TTL: none. Orders are kept, and the stock must outlive every restart of the servers.
]]
local call, most = redis.call, 500
local stock, buyers, orders = KEYS[1], KEYS[2], KEYS[3]
local line, turns, unpaid, paid = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local returned, refunds, payments = KEYS[8], KEYS[9], KEYS[10]
local op, subject, value = ARGV[1], ARGV[6], ARGV[7]
local opening, turn_us, pay_us = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
-- Who gives turns shows the secret of the draw, whatever the clock of this node says.
if opening and turn_us > 0 then
  opening = math.min(opening, now_us)
end

local known, sold = call('GET', stock), call('HLEN', orders)
local history = sold + call('HLEN', returned) + call('HLEN', paid)
local told = tonumber(ARGV[5])
local is_older = history < told
if op == 'tick' then
  -- Since then others may have sold as many.
  is_older = is_older or not known or value ~= '' and not call('HGET', orders, value)
    and not call('HGET', returned, value) and not call('HGET', payments, value)
end
if is_older and known ~= 'lost' then
  -- Redis has come back older, and would sell again what is sold. A server that is started later finds this.
  known = 'lost'
  call('SET', stock, known)
end
-- The number of sold pieces is the number of orders, so that the two cannot differ, and every order has a buyer. A
-- Redis that evicts keys may have dropped one of the two, or the stock.
local pieces = tonumber(known)
local is_lost = not pieces or call('HLEN', buyers) ~= sold or op == 'tick' and call('GET', KEYS[11]) ~= subject

local waits = ARGV[9] == '1' and op ~= 'entry'
local function reply(outcome, text, number, news_us, level)
  local replication = waits and call('INFO', 'replication') or ''
  return { outcome, text or '', number or 0, now_us, news_us or 0, history, level or {}, replication }
end

if is_lost then
  return reply('lost')
end
if op == 'pay' then
  local refunded = call('HGET', refunds, value)
  local order = call('HGET', payments, value) or refunded
  if order and order ~= subject then
    return reply('payment-used')
  end
  local by, user = call('HGET', paid, subject), call('HGET', orders, subject)
  local deadline = tonumber(call('ZSCORE', unpaid, subject))
  local outcome = by and 'already-paid' or 'too-late'
  if by == value or user and not by and not refunded and (not deadline or deadline > now_us) then
    outcome, history = 'paid', by and history or history + 1
    call('HSET', paid, subject, value)
    call('HSET', payments, value, subject)
    call('ZREM', unpaid, subject)
  else
    if not user and not call('HGET', returned, subject) then
      outcome = 'unknown'
    end
    -- Also for an order that Redis may have lost: the money was taken.
    if ARGV[8] == '1' then
      call('HSET', refunds, value, subject)
    end
  end
  return reply(outcome)
end

-- Tells where the user is.
local function state()
  local held = call('HGET', buyers, subject)
  if held then
    local outcome = call('HGET', paid, held) and 'paid' or 'ordered'
    return outcome, held, tonumber(call('ZSCORE', unpaid, held)) or 0
  end
  local turn_end = tonumber(call('ZSCORE', turns, subject))
  if turn_end and turn_end > now_us then
    return 'turn', '', turn_end
  end
  local rank = call('ZRANK', line, subject)
  if opening and now_us < opening then
    return rank and 'entered' or 'none', '', rank and opening
  end
  if call('HLEN', paid) >= pieces then
    return 'over'
  end
  if not rank then
    return 'none'
  end
  return 'waiting', '', rank + 1
end

local function seen(refused)
  local level = { pieces, sold, call('HLEN', paid), call('ZCARD', line), call('ZCARD', turns) }
  -- What takes no writes may be no master any more, and says nothing of the replicas of the new one.
  waits = waits and not refused
  return reply('done', refused, 0, 0, level)
end
if op == 'tick' then
  -- A Redis that takes no writes, or not all of them from this user, is found out before anybody orders.
  local nothing = {
    { 'SET', stock, known }, { 'ZADD', unpaid, 'XX', 0, '' }, { 'ZREM', unpaid, '' }, { 'ZPOPMIN', line, 0 },
    { 'HDEL', returned, '' }, { 'HSET', returned, '', '' }, { 'HDEL', returned, '' },
  }
  for _, command in ipairs(nothing) do
    local told = redis.pcall(unpack(command))
    if type(told) == 'table' and told.err then
      return seen(told.err)
    end
  end
end
local function give_back(order)
  local user = call('HGET', orders, order)
  if user and not call('HGET', paid, order) then
    -- Fails here if this user lacks the right to what follows: Redis takes nothing back of what was changed before.
    call('HDEL', returned, order)
    call('HSET', returned, order, user)
    call('HDEL', orders, order)
    call('HDEL', buyers, user)
    sold = sold - 1
  end
  call('ZREM', unpaid, order)
end

if op == 'order' then
  local held = call('HGET', buyers, subject)
  local deadline = held and tonumber(call('ZSCORE', unpaid, held))
  if deadline and deadline <= now_us and not call('HGET', paid, held) then
    give_back(held)
  elseif held then
    -- The same order again: the reply to the first call was lost.
    return reply(held == value and 'placed' or 'held', held, deadline)
  end
  if opening then
    local turn_end = tonumber(call('ZSCORE', turns, subject))
    if not turn_end or turn_end ~= tonumber(ARGV[8]) or turn_end <= now_us then
      return reply('turn-over')
    end
  end
end

-- Pieces that were not paid in time come back. An order needs that only if there is no other piece.
if sold >= pieces or op ~= 'order' then
  for _, order in ipairs(call('ZRANGEBYSCORE', unpaid, '-inf', now_us, 'LIMIT', 0, most)) do
    give_back(order)
  end
end

if op == 'order' then
  if sold >= pieces then
    return reply('sold-out')
  end
  local deadline = now_us + pay_us
  call('ZADD', unpaid, deadline, value)
  call('HSET', buyers, subject, value)
  call('HSET', orders, value, subject)
  history = history + 1
  if opening then
    call('ZREM', turns, subject)
  end
  return reply('placed', value, deadline)
end

-- Tells when there can be a turn for this place in line.
local function news_us(place)
  local running, owed = call('ZCARD', turns), call('ZCARD', unpaid)
  if sold + running < pieces then
    return now_us
  end
  local function ending(key, number)
    return tonumber(call('ZRANGE', key, number - 1, number - 1, 'WITHSCORES')[2]) or math.huge
  end
  -- Until so many have ended, this many turns have, or more orders than the others are. So one of these two times
  -- has come.
  local of_turns = math.max(math.ceil(place * running / (running + owed)), 1)
  local news = math.min(ending(turns, of_turns), ending(unpaid, place - of_turns + 1))
  return news < math.huge and news or 0
end

if op == 'enter' then
  local outcome = state()
  if outcome == 'none' or outcome == 'entered' or outcome == 'waiting' then
    -- Once anybody had a turn the secret is known, also if the clock has stepped back since.
    local is_secret = history == 0 and call('ZCARD', turns) == 0
    local place = now_us < opening and is_secret and value or 4503599627370496 + now_us
    call('ZADD', line, 'NX', place, subject)
  end
end

-- As many turns as there are free pieces.
if opening and now_us >= opening and turn_us > 0 then
  local over = call('ZRANGEBYSCORE', turns, '-inf', now_us, 'LIMIT', 0, most)
  if #over > 0 then
    call('ZREM', turns, unpack(over))
  end
  local live = call('ZCOUNT', turns, '(' .. string.format('%.0f', now_us), '+inf')
  local free = math.min(pieces - sold - live, most)
  local first = free > 0 and call('ZPOPMIN', line, free) or {}
  for at = 1, #first, 2 do
    first[at], first[at + 1] = now_us + turn_us, first[at]
  end
  if #first > 0 then
    call('ZADD', turns, unpack(first))
  end
end
if op == 'tick' then
  return seen()
end
local outcome, text, number = state()
return reply(outcome, text, number, outcome == 'waiting' and news_us(number))
