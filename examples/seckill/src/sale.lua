--[[
  Changes one SKU: sells a piece of it, takes a payment, or enters a user into the draw. Pieces that are not paid in
  time come back, and in a draw free pieces become turns of those who are first in line. A call handles up to 500 of
  each, and the next one more.

  Keys:
    KEYS[1] stock (string): the number of pieces when the sale was set up, or `lost` if Redis has lost it since
    KEYS[2] buyers (HASH): from the user id to the UUID of the user's order
    KEYS[3] orders (HASH): from the UUID of an order that holds a piece to the user id
    KEYS[4] line (ZSET): users by place: below 2^52 as drawn, and from there on by the time of the entry
    KEYS[5] held (ZSET): users who hold a piece until it ends: by the end of their turn, or by the time until which
      their order has to be paid, in microseconds since 1970
    KEYS[6] paid (HASH): from the UUID of the order to the id of the payment
    KEYS[7] returned (HASH): from the UUID of an order that was not paid in time to the user id
    KEYS[8] refunds (HASH): from the id of a payment that has bought nothing to the UUID of the order
    KEYS[9] payments (HASH): from the id of a payment to the UUID of the order that it has paid
    KEYS[10] draw (string): the seed of the draw, or what says that there is none

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
    REPLY[1] outcome (text): what `Outcome` in stock.rs lists
    REPLY[2] text (text): the UUID of the order that the user has; to `tick` why Redis takes no writes, if so
    REPLY[3] number (number): when the turn ends or the order has to be paid, in microseconds since 1970, or 0; in
      line the place
    REPLY[4] now_us (microseconds): the time of Redis
    REPLY[5] news_us (microseconds): in line at the k-th place, when the k-th of the running turns and times to pay
      ends, since 1970; 0 if there are not so many
    REPLY[6] history (count): how many orders and payments there ever were
    REPLY[7] level (list of counts): to `tick` the pieces, those that orders hold, those that are paid, the users in line,
      and the turns; else nil
    REPLY[8] master (text): the name of the history of this master, if changes wait for its replicas; nil to `entry`,
      and while Redis takes no writes

  Cost: O(log n) for n users in line; up to 500 times as much after many turns or times to pay have ended.
  TTL: none. Orders are kept, and the stock must outlive every restart of the servers.
]]
local call, most = redis.call, 500
local stock, buyers, orders, line, held = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local paid, returned, refunds, payments, draw = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local op, opening, turn_us = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local pay_us, told, subject, value = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[7]
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
-- Who gives turns shows the secret of the draw, whatever the clock of this node says.
if opening and turn_us > 0 then
  opening = math.min(opening, now_us)
end

local known, sold, settled = call('GET', stock), call('HLEN', orders), call('HLEN', paid)
local history = sold + call('HLEN', returned) + settled
local is_older = not known or history < told
if op == 'tick' and value ~= '' then
  -- Since then others may have sold as many.
  is_older = is_older or not call('HGET', orders, value)
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
local is_lost = not pieces or call('HLEN', buyers) ~= sold or op == 'tick' and call('GET', draw) ~= subject

local waits = ARGV[9] == '1' and op ~= 'entry'
local function reply(outcome, text, number, news_us, level)
  local master = waits and string.match(call('INFO', 'replication'), 'master_replid:(%w+)')
  return { outcome, text or '', number or 0, now_us, news_us or 0, history, level or false, master }
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
  local deadline = user and tonumber(call('ZSCORE', held, user))
  local outcome = by and 'already-paid' or 'too-late'
  if by == value or user and not by and not refunded and (not deadline or deadline > now_us) then
    outcome, history = 'paid', by and history or history + 1
    call('HSET', paid, subject, value)
    call('HSET', payments, value, subject)
    call('ZREM', held, user or '')
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

local function seen(refused)
  local turns = math.max(call('ZCARD', held) - (sold - settled), 0)
  -- What takes no writes may be no master any more, and says nothing of the replicas of the new one.
  waits = waits and not refused
  return reply('done', refused, 0, 0, { pieces, sold, settled, call('ZCARD', line), turns })
end
if op == 'tick' then
  -- A Redis that takes no writes, or not all of them from this user, is found out before anybody orders.
  local nothing = {
    { 'SET', stock, known }, { 'ZADD', held, 'XX', 0, '' }, { 'ZREM', held, '' }, { 'ZPOPMIN', line, 0 },
    { 'HDEL', returned, '' }, { 'HSET', returned, '', '' }, { 'HDEL', returned, '' },
  }
  for _, command in ipairs(nothing) do
    local done = redis.pcall(unpack(command))
    if type(done) == 'table' and done.err then
      return seen(done.err)
    end
  end
end

-- Turns that are over, and pieces that were not paid in time, are free again.
for _, user in ipairs(call('ZRANGEBYSCORE', held, '-inf', now_us, 'LIMIT', 0, most)) do
  local order = call('HGET', buyers, user)
  if order and not call('HGET', paid, order) then
    -- Fails here if this user lacks the right to what follows: Redis takes nothing back of what was changed before.
    call('HDEL', returned, order)
    call('HSET', returned, order, user)
    call('HDEL', orders, order)
    call('HDEL', buyers, user)
    sold = sold - 1
  end
  call('ZREM', held, user)
end

-- Tells where the user is.
local function state()
  local order, ends = call('HGET', buyers, subject), tonumber(call('ZSCORE', held, subject))
  if order then
    return call('HGET', paid, order) and 'paid' or 'ordered', order, ends
  end
  if ends and ends > now_us then
    return 'turn', '', ends
  end
  local rank = call('ZRANK', line, subject)
  if opening and now_us < opening then
    return rank and 'entered' or 'none', '', rank and opening
  end
  if settled >= pieces then
    return 'over'
  end
  return rank and 'waiting' or 'none', '', rank and rank + 1
end

if op == 'enter' then
  local outcome = state()
  if outcome == 'none' or outcome == 'entered' or outcome == 'waiting' then
    -- Once anybody had a turn the secret is known, also if the clock has stepped back since.
    local is_secret = history == 0 and call('ZCARD', held) == 0
    local place = now_us < opening and is_secret and value or 4503599627370496 + now_us
    call('ZADD', line, 'NX', place, subject)
  end
end

-- As many turns as there are free pieces.
local free = pieces - settled - call('ZCARD', held)
if opening and now_us >= opening and turn_us > 0 and free > 0 then
  local first = call('ZPOPMIN', line, math.min(free, most))
  for at = 1, #first, 2 do
    first[at], first[at + 1] = now_us + turn_us, first[at]
  end
  if #first > 0 then
    call('ZADD', held, unpack(first))
  end
  free = free - #first / 2
end

if op == 'tick' then
  return seen()
end
if op == 'order' then
  local order = call('HGET', buyers, subject)
  local ends = (order or opening) and tonumber(call('ZSCORE', held, subject))
  if order then
    -- The same order again: the reply to the first call was lost.
    return reply(order == value and 'placed' or 'held', order, ends)
  end
  if opening and (not ends or ends ~= tonumber(ARGV[8]) or ends <= now_us) then
    return reply('turn-over')
  end
  if sold >= pieces then
    return reply('sold-out')
  end
  local deadline = now_us + pay_us
  -- Fails here if this user may not, or there is no memory, and a turn is still there.
  call('ZADD', held, 'XX', 0, '')
  call('HSET', buyers, subject, value)
  call('HSET', orders, value, subject)
  call('ZADD', held, deadline, subject)
  history = history + 1
  return reply('placed', value, deadline)
end
local outcome, text, number = state()
local news_us
if outcome == 'waiting' then
  -- There can be a turn for this place in line when so many of those who hold a piece have ended.
  news_us = free > 0 and now_us or tonumber(call('ZRANGE', held, number - 1, number - 1, 'WITHSCORES')[2])
end
return reply(outcome, text, number, news_us)
