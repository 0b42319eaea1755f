--[[
  Decides on requests. Records each in all of its logs if it fits into all of them, and in none
  otherwise.

  Keys:
    KEYS[i] for each request:
      for each log:
        log (ZSET): the log; the score of an entry is its timestamp in microseconds
      for each log that is a budget:
        costs (HASH): the cost of each entry; the empty field has its sums
      for each log whose policy has a penalty:
        record (HASH): the ban record: until, level, reason, episode_until, length
        strikes (ZSET): the strikes; the score of a strike is its timestamp in microseconds

  Arguments:
    ARGV[1...] for each group of requests that differ in their keys only, in the order of the keys:
      shape (bytes): numbers, each a big-endian double of 8 bytes, which cost less than arguments
        requests (count): how many the group has
        mode (0, 1 or 2): 1 if a request may have been recorded already, 2 to record nothing
        wants_reset (0 or 1): whether the reply has reset_us
        logs (count): how many logs each request has
        penalties (count): how many of the logs have a policy with a penalty
        values (count): how many of the logs count distinct values
        budgets (count): how many of the logs are budgets
        for each log:
          cost (places): how many places a request takes in it
          kept_us (microseconds): how long it keeps its entries
          quotas (count): how many quotas follow
          penalty (count): how many numbers describe the penalty; 0 if there is none
          counts (0 to 3): 0 for requests, 3 for their costs; otherwise an entry that is there takes no place
            again and gets a new timestamp: 1 for requests in flight, 2 for distinct values
          for each quota:
            limit (places): how many the quota allows
            window_us (microseconds): the length of the window, at most kept_us
          if the policy has a penalty:
            max_strikes (strikes): how many bring a ban; 0 if they are not counted
            within_us (microseconds): how long a strike counts
            decay_us (microseconds): after how long without a ban the level falls by one
            for each level:
              length_us (microseconds): the length of the ban
      for each request:
        member (16 bytes): the UUID of the request
        for each log that counts distinct values:
          value (16 bytes): its entry there in place of member

  Reply:
    REPLY[1] numbers (bytes): see below
      now_us (microseconds of the Unix epoch): the timestamp of the decisions
      for each request:
        state (-2 to 2): 1 if it is admitted, 0 if it is denied, 2 if it was recorded earlier;
          -1 if Redis can't use one of its keys, which concerns no other request, and -2 if so many entries
          have left a budget that the request has to be sent again: then the rest is missing
        for each quota:
          remaining (places): how many are free after the decision
          wait_us (microseconds): the time until the request fits; 0 if it fits
          reset_us (microseconds): the time until the oldest entry leaves, 0 if there is none;
            missing unless it is wanted
        for each log whose policy has a penalty:
          banned_us (microseconds): how long the ban still lasts; 0 if there is none
          struck (0, 1 or 2): 1 if the request was a strike, 2 if it brought a ban
          episode_us (microseconds): for how long further denials are no strikes
        at_us (microseconds of the Unix epoch): when it was recorded; only if the state is 2
    REPLY[2...] for each request whose keys Redis can't use:
      error (text): why

    The numbers are big-endian doubles of 8 bytes in one string, because a client reads many integers
    of Redis slowly. The reply is that string, or, if Redis can't use a key, an array of it and of errors.

  Cost: O(log n) for each place and quota, n is the number of entries in a log or of strikes.
    A call removes at most 256 expired entries more than it adds to a log; it counts without the rest. From
    a budget it removes at most 1,000, and the wait of a denial reads at most 4,096: if these are not enough, it
    is the time until all have left.
  TTL: a log expires kept_us and a second after its newest entry. Strikes expire within_us and a
    second after the last one, a ban record a second after the ban, its levels and the episode are
    over. None of these becomes shorter.
]]
local call, try, format, rep = redis.call, redis.pcall, string.format, string.rep
local new, again, peek, most_expired, most_strikes, most_costs = 0, 1, 2, 256, 100, 1000
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
-- As text: a number becomes text anew for each command, and slowly.
local now = format('%d', now_us)
local left, left_of, expires_ms, expires_of, budget_of, used_of, wait_of

local numbers, n, errors, key, arg = { now_us }, 1, nil, 1, 1
while key <= #KEYS do
  local packed = ARGV[arg]
  local shape = { struct.unpack('>' .. rep('d', #packed / 8), packed) }
  local requests, mode, wants_reset, logs, penalties, values, budgets =
    shape[1], shape[2], shape[3] == 1, shape[4], shape[5], shape[6], shape[7]
  arg = arg + 1

  if budgets > 0 and not budget_of then
    -- A budget counts with running sums, packed in the empty field of its costs: of all entries, the instant up
    -- to which these have left, and for each shorter window its length, the sum of what is later than an instant,
    -- and that instant. An instant follows the clock, also backwards.
    local function cost_of(costs, members)
      local total = 0
      for from = 1, #members, 1000 do
        local of = call('HMGET', costs, unpack(members, from, math.min(from + 999, #members)))
        for i = 1, #of do
          total = total + (of[i] or 0)
        end
      end
      return total
    end

    -- Returns the entries between two instants, and the instant up to which these are all.
    local function between(budget, after_us, until_us)
      local log, from = budget.log, format('(%d', after_us)
      local members = call('ZRANGE', log, from, format('%d', until_us), 'BYSCORE', 'LIMIT', 0, most_costs)
      if #members == most_costs then
        -- With all others of the last one's timestamp.
        local last_us = tonumber(call('ZSCORE', log, members[most_costs]))
        if last_us < until_us then
          budget.is_whole, until_us = false, last_us
        end
        members = call('ZRANGE', log, from, format('%d', until_us), 'BYSCORE')
      end
      budget.has_changed = budget.has_changed or #members > 0
      return members, until_us
    end

    budget_of = function(log, costs, kept_us, entries)
      local packed = try('HGET', costs, '')
      if type(packed) == 'table' then
        return nil, packed.err
      end
      if packed and entries == 0 then
        -- The sums of a log that somebody has deleted are of no use.
        call('UNLINK', costs)
        packed = nil
      end
      local sums = packed and { struct.unpack('>' .. rep('d', #packed / 8), packed) } or { 0, -1, 0 }
      sums[#sums] = nil
      local budget = { log = log, costs = costs, kept_us = kept_us, sums = sums, is_whole = true }
      local members, until_us = between(budget, -1, now_us - kept_us)
      sums[2] = math.max(sums[2], until_us)
      if #members > 0 then
        sums[1] = sums[1] - cost_of(costs, members)
        for from = 1, #members, 1000 do
          call('HDEL', costs, unpack(members, from, math.min(from + 999, #members)))
        end
        call('ZREMRANGEBYRANK', log, 0, #members - 1)
      end
      return budget
    end

    used_of = function(budget, window_us)
      local sums, at = budget.sums, 3
      if window_us == budget.kept_us then
        return sums[1]
      end
      while sums[at] and sums[at] ~= window_us do
        at = at + 3
      end
      if not sums[at] or sums[at + 2] < sums[2] then
        sums[at], sums[at + 1], sums[at + 2] = window_us, sums[1], -1
      end
      local since_us = now_us - window_us
      if since_us >= sums[at + 2] then
        local left
        left, sums[at + 2] = between(budget, sums[at + 2], since_us)
        sums[at + 1] = sums[at + 1] - cost_of(budget.costs, left)
      else
        local from, to = format('(%d', since_us), format('%d', sums[at + 2])
        local back = cost_of(budget.costs, call('ZRANGE', budget.log, from, to, 'BYSCORE'))
        sums[at + 1], sums[at + 2], budget.has_changed = sums[at + 1] + back, since_us, true
      end
      return sums[at + 1]
    end

    -- Returns the time until so much has left a window.
    wait_of = function(budget, window_us, excess)
      local log, since, first, count = budget.log, format('(%d', now_us - window_us), 0, 4
      while first < 4096 do
        local found = call('ZRANGE', log, since, '+inf', 'BYSCORE', 'LIMIT', first, count)
        local of = #found > 0 and call('HMGET', budget.costs, unpack(found)) or {}
        for i = 1, #of do
          excess = excess - (of[i] or 0)
          if excess <= 0 then
            return call('ZSCORE', log, found[i]) + window_us - now_us
          end
        end
        first, count = first + count, first + count
      end
      return call('ZRANGE', log, -1, -1, 'WITHSCORES')[2] + window_us - now_us
    end
  end

  for _ = 1, requests do
    local member, state, first, at, value = ARGV[arg], 1, n + 1, 8, arg
    local recorded_us, full_us, newest, refreshed, free, budget
    local costs_at = key + logs
    n = first
    for k = key, key + logs - 1 do
      local log, cost, kept_us, last = KEYS[k], shape[at], shape[at + 1], at + 4 + 2 * shape[at + 2]
      local counts, entries, found_us = shape[at + 4], try('ZCARD', log), nil
      if not tonumber(entries) then
        state, errors = -1, errors or {}
        errors[#errors + 1] = entries.err
        break
      end
      if entries > 0 then
        if call('PTTL', log) > kept_us / 1000 + 1002 then
          -- The clock has stepped back. The new entry must not leave before the newest one.
          newest = newest or {}
          newest[k] = call('ZRANGE', log, -1, -1, 'WITHSCORES')[2]
        end
        if left_of ~= kept_us then
          left, left_of = format('%d', now_us - kept_us), kept_us
        end
        if counts == 3 then
          -- Its entries leave together with their costs.
        elseif entries <= most_expired then
          entries = entries - call('ZREMRANGEBYSCORE', log, '-inf', left)
        else
          local expired = call('ZCOUNT', log, '-inf', left)
          if expired > 0 then
            call('ZREMRANGEBYRANK', log, 0, math.min(expired, most_expired + cost) - 1)
          end
          entries = entries - expired
        end
      end
      if counts == 3 then
        budget = budget or {}
        local it, error = budget_of(log, KEYS[costs_at], kept_us, entries)
        if not it then
          state, errors = -1, errors or {}
          errors[#errors + 1] = error
          break
        end
        budget[k], costs_at = it, costs_at + 1
      elseif counts > 0 then
        local entry = member
        if counts == 2 then
          value = value + 1
          entry = ARGV[value]
        end
        refreshed = refreshed or {}
        refreshed[k], found_us = entry, tonumber(call('ZSCORE', log, entry) or nil)
      end
      for q = at + 5, last, 2 do
        local limit, window_us, used, wait_us, needed = shape[q], shape[q + 1], entries, 0, cost
        if found_us and found_us + window_us > now_us then
          needed, free = 0, free or {}
          free[n + 1] = true
        end
        if counts == 3 then
          used = used_of(budget[k], window_us)
        elseif entries > 0 and window_us ~= kept_us then
          used = call('ZCOUNT', log, format('(%d', now_us - window_us), '+inf')
        end
        if used + needed > limit then
          wait_us = window_us
          if needed > limit then
            -- It never fits.
          elseif counts == 3 then
            wait_us = wait_of(budget[k], window_us, used + needed - limit)
          else
            -- The request fits as soon as the (limit - needed + 1)-th newest entry has left the window. If its own
            -- entry has left by then, it needs a place.
            local rank = needed - limit - 1
            local at_us = tonumber(call('ZRANGE', log, rank, rank, 'WITHSCORES')[2])
            if needed < cost and found_us <= at_us then
              rank = cost - limit - 1
              at_us = tonumber(call('ZRANGE', log, rank, rank, 'WITHSCORES')[2])
            end
            wait_us = at_us + window_us - now_us
          end
          state, full_us = 0, full_us or {}
          full_us[k] = math.max(full_us[k] or 0, window_us)
        end
        numbers[n + 1], numbers[n + 2] = used < limit and limit - used or 0, wait_us
        n = n + (wants_reset and 3 or 2)
      end
      at = last + 1 + shape[at + 3]
    end

    if budget then
      for _, it in pairs(budget) do
        if it.has_changed then
          call('HSET', it.costs, '', struct.pack('>' .. rep('d', #it.sums), unpack(it.sums)))
        end
        state = state >= 0 and not it.is_whole and -2 or state
      end
    end

    -- With one log and no penalty an admission finds out by adding its entry.
    if mode == again and (state == 0 or state == 1 and logs + penalties > 1) then
      for k = key, key + logs - 1 do
        recorded_us = recorded_us or not (refreshed and refreshed[k]) and call('ZSCORE', KEYS[k], member)
      end
    end

    -- A request that meets a ban is denied. A request that a full quota denies is a strike, and enough
    -- strikes bring a ban. All denials within one length of the window after a strike are one episode,
    -- and only the first of them is a strike.
    if penalties > 0 and state >= 0 then
      local k, record_at = key, key + logs + budgets
      at = 8
      while record_at < key + logs + budgets + 2 * penalties do
        local penalty, levels = at + 5 + 2 * shape[at + 2], shape[at + 3] - 3
        at = penalty + levels + 3
        if levels >= 0 then
          local record, strikes = KEYS[record_at], KEYS[record_at + 1]
          local max_strikes, within_us, decay_us = shape[penalty], shape[penalty + 1], shape[penalty + 2]
          local known, struck = try('HMGET', record, 'until', 'level', 'episode_until'), 0
          local error = known.err
          local until_us, level = tonumber(known[1] or 0), tonumber(known[2] or 0)
          local episode_us = tonumber(known[3] or 0)
          local counts = full_us and full_us[k] and max_strikes > 0 and mode ~= peek
          if not error and until_us > now_us and not recorded_us then
            state = 0
          elseif not error and counts and episode_us <= now_us and not recorded_us then
            local added = try('ZADD', strikes, now, member)
            if type(added) == 'table' then
              error = added.err
            else
              struck, episode_us = 1, now_us + full_us[k]
              call('ZREMRANGEBYRANK', strikes, 0, -most_strikes - 1)
              local strikes_ms = math.ceil(within_us / 1000) + 1000
              if call('PTTL', strikes) < strikes_ms then
                call('PEXPIRE', strikes, strikes_ms)
              end
              if call('ZCOUNT', strikes, format('(%d', now_us - within_us), '+inf') >= max_strikes then
                struck = 2
                call('DEL', strikes)
                level = math.max(0, level - math.floor((now_us - until_us) / decay_us))
                level = math.min(level + 1, levels)
                until_us = now_us + shape[penalty + 2 + level]
                call('HSET', record, 'until', until_us, 'level', level, 'reason', 'strikes', 'length', 0)
              end
              call('HSET', record, 'episode_until', episode_us)
              local over_us = math.max(until_us + level * decay_us, episode_us)
              local record_ms = math.ceil((over_us - now_us) / 1000) + 1000
              if call('PTTL', record) < record_ms then
                call('PEXPIRE', record, record_ms)
              end
            end
          end
          if error then
            state, errors = -1, errors or {}
            errors[#errors + 1] = error
            break
          end
          numbers[n + 1] = recorded_us and 0 or math.max(until_us - now_us, 0)
          numbers[n + 2], numbers[n + 3] = struck, math.max(episode_us - now_us, 0)
          n, record_at = n + 3, record_at + 2
        end
        k = k + 1
      end
    end

    local is_added, slot = state == 1 and not recorded_us and mode ~= peek, first + 1
    at = 8
    if is_added or wants_reset and state >= 0 then
      for k = key, key + logs - 1 do
        local log, cost, kept_us, last = KEYS[k], shape[at], shape[at + 1], at + 4 + 2 * shape[at + 2]
        local score = now
        if newest and newest[k] and newest[k] - now_us > 0 then
          score, expires_of = newest[k], nil
        end
        if is_added and cost > 0 then
          if refreshed and refreshed[k] then
            call('ZADD', log, 'GT', score, refreshed[k])
          elseif mode == new then
            call('ZADD', log, score, member)
          elseif call('ZADD', log, 'NX', score, member) == 0 then
            recorded_us, is_added = call('ZSCORE', log, member), false
          end
        end
        if is_added and cost > 0 then
          if expires_of ~= kept_us then
            expires_ms, expires_of = format('%d', (score + kept_us) / 1000 + 1001), kept_us
          end
          call('PEXPIREAT', log, expires_ms)
          if budget and budget[k] then
            local costs, sums = budget[k].costs, budget[k].sums
            sums[1] = sums[1] + cost
            for i = 4, #sums, 3 do
              -- After a clock step, what other policies have counted may be later.
              if score - sums[i + 1] > 0 then
                sums[i] = sums[i] + cost
              end
            end
            call('HSET', costs, member, cost, '', struct.pack('>' .. rep('d', #sums), unpack(sums)))
            call('PEXPIREAT', costs, expires_ms)
          end
        end
        if score ~= now then
          expires_of = nil
        end
        for q = at + 5, last, 2 do
          if is_added and not (free and free[slot]) then
            numbers[slot] = numbers[slot] > cost and numbers[slot] - cost or 0
          end
          if wants_reset then
            local window_us = shape[q + 1]
            local since = format('(%d', now_us - window_us)
            local oldest = call('ZRANGE', log, since, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
            numbers[slot + 2] = oldest[2] and oldest[2] + window_us - now_us or 0
          end
          slot = slot + (wants_reset and 3 or 2)
        end
        at = last + 1 + shape[at + 3]
      end
    end

    if state < 0 then
      n = first
    elseif recorded_us then
      state, n = 2, n + 1
      numbers[n] = tonumber(recorded_us)
    end
    numbers[first] = state
    key, arg = key + logs + budgets + 2 * penalties, arg + 1 + values
  end
end

-- In parts: Lua passes a few thousand values at a time.
local reply = ''
for from = 1, n, 4000 do
  local to = from + 3999 < n and from + 3999 or n
  reply = reply .. struct.pack('>' .. rep('d', to - from + 1), unpack(numbers, from, to))
end
if errors then
  return { reply, unpack(errors) }
end
return reply
