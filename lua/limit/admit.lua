--[[
  Decides on requests. Records each in all of its logs if it fits into all of them, and in none
  otherwise.

  Keys:
    KEYS[i] for each request:
      for each log:
        log (ZSET): the log; the score of an entry is its timestamp in microseconds. An entry of a budget is the
          UUID of its request and what this cost when it was admitted, a big-endian double. If it was settled, a second
          entry of the same timestamp has the first one's bytes and by how much the cost has changed. The first
          entry of a budget, the only one with a score below 0, has the sums: its score is -1 less the sum of
          all costs, and its bytes are three doubles for each shorter window that was asked for, at most 64: its
          length in microseconds, the sum of what has left it, and the timestamp up to which this has left
      for each log whose policy has a penalty:
        record (HASH): the ban record: until, level, reason, episode_until, length
        strikes (ZSET): the strikes; the score of a strike is its timestamp in microseconds

  Arguments:
    ARGV[1] more (count): how many keys follow that are not in KEYS, because they are in several slots of this node
      of a Cluster. Redis refuses one whose slot has moved, and the request then gets an error
    ARGV[2...] these keys, and then, for each group of requests that differ in their keys only, in the order of
      the keys:
      shape (bytes): numbers, each a big-endian double of 8 bytes, which cost less than arguments
        requests (count): how many the group has
        mode (0, 1 or 2): 1 if a request was sent before, 2 to record nothing
        wants_reset (0 or 1): whether the reply has reset_us
        logs (count): how many logs each request has
        penalties (count): how many of the logs have a policy with a penalty
        values (count): how many of the logs count distinct values or are budgets
        budgets (count): how many of the logs are budgets
        for each log:
          cost (places): how many places a request takes in it, unless it is a budget
          retention_us (microseconds): how long it keeps its entries
          quotas (count): how many quotas follow
          penalty (count): how many numbers describe the penalty; 0 if there is none
          counts (0 to 3): 0 for requests, 3 for their costs; otherwise an entry that is there takes no place
            again and gets a new timestamp: 1 for requests in flight, 2 for distinct values
          for each quota:
            limit (places): how many the quota allows
            window_us (microseconds): the length of the window, at most retention_us
          if the policy has a penalty:
            max_strikes (strikes): how many bring a ban; 0 if they are not counted
            within_us (microseconds): how long a strike counts
            decay_us (microseconds): after how long without a ban the level falls by one
            for each level:
              length_us (microseconds): the length of the ban
      for each request:
        member (16 bytes): the UUID of the request
        for each log that counts distinct values or is a budget:
          entry (16 or 24 bytes): its entry there in place of member

  Reply:
    REPLY[1] numbers (bytes): see below
      now_us (microseconds of the Unix epoch): the timestamp of the decisions
      for each request:
        state (-2 to 3): 1 if it is admitted, 0 if it is denied, 2 if it was recorded earlier;
          -1 if Redis can't use one of its keys, which concerns no other request; if so many entries have left a
          budget that the request has to be sent again, -2, or 3 if it is denied all the same, as if that budget were
          empty; 0 in place of 3 if Redis takes no writes. After -1 and -2 the rest is missing
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
    A request removes at most 256 expired entries more than it adds to a log; it counts without the rest. From
    a budget it removes at most 1,000, and the wait of a denial reads at most 4,096: if these are not enough, it
    is the time until all have left. After requests that have read or removed 1,000 entries in all, those that
    follow in the call remove from a log of more than 256 entries only as many as they add, and are sent again if
    they would have to read 32 or more of a budget.
  TTL: a log expires retention_us and a second after its newest entry. Strikes expire within_us and a
    second after the last one, a ban record a second after the ban, its levels and the episode are
    over. None of these becomes shorter.
]]
local call, try, format, rep, find = redis.call, redis.pcall, string.format, string.rep, string.find
local new, again, peek = 0, 1, 2
local in_flight, distinct, budget = 1, 2, 3
local send_again, unusable, denied, admitted, recorded, denied_anyway = -2, -1, 0, 1, 2, 3
local most_expired, most_strikes, most_windows, most_numbers, most_late = 256, 100, 64, 4000, 32
-- The entries that were read or removed, and whether these are enough for one call.
local read, is_late = 0, false
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
-- As text: a number becomes text anew for each command, and slowly.
local now = format('%d', now_us)
local left, left_of, expires_ms, expires_of
-- Of each log that is a budget: the entry of the request, its cost, the sum of all costs, the bytes of the first
-- entry, and the numbers in these if there are any; the budgets whose first entry has to change; whether only some of
-- what has left was counted out.
local entry_of, cost_of, sum_of, name_of, windows_of, changed, is_cut
local open, trim, used_of, wait_of, write

local more, declared = tonumber(ARGV[1]), #KEYS
for i = 1, more do
  KEYS[declared + i] = ARGV[1 + i]
end

local numbers, n, errors, key, arg = { now_us }, 1, nil, 1, 2 + more
while key <= #KEYS do
  local packed = ARGV[arg]
  local all, at_once = #packed / 8, math.min(#packed / 8, most_numbers)
  local shape = { struct.unpack('>' .. rep('d', at_once), packed) }
  -- Lua has room for 8,000 results at a time.
  for i = at_once + 1, all do
    shape[i] = struct.unpack('>d', packed, 8 * i - 7)
  end
  local requests, mode, wants_reset, logs, penalties, values, budgets =
    shape[1], shape[2], shape[3] == 1, shape[4], shape[5], shape[6], shape[7]
  arg = arg + 1

  if budgets > 0 and not entry_of then
    entry_of, cost_of, sum_of, name_of, windows_of = {}, {}, {}, {}, {}

    local function cost_in(entry)
      return struct.unpack('>d', entry, #entry - 7)
    end

    local function total(entries)
      local sum = 0
      for i = 1, #entries do
        sum = sum + cost_in(entries[i])
      end
      return sum
    end

    -- Returns the sum of the costs after an instant and up to another, and the instant up to which these are all.
    local function sum_between(k, after_us, until_us)
      local log, from, most = KEYS[k], format('(%d', after_us), is_late and most_late or 1000
      local entries = call('ZRANGE', log, from, format('%d', until_us), 'BYSCORE', 'LIMIT', 0, most)
      read = read + #entries
      if is_late and #entries == most then
        is_cut = true
        return 0, after_us
      elseif #entries == most then
        -- With all others of the last one's timestamp.
        local last_us = tonumber(call('ZSCORE', log, entries[most]))
        if last_us < until_us then
          is_cut, until_us = true, last_us
        end
        entries = call('ZRANGE', log, from, format('%d', until_us), 'BYSCORE')
      end
      if #entries > 0 then
        changed = changed or {}
        changed[k] = true
      end
      return total(entries), until_us
    end

    -- Returns the TTL of a budget, -2 if there is none, and an error if Redis can't use it.
    open = function(k, entry)
      local log = KEYS[k]
      entry_of[k], cost_of[k], sum_of[k], name_of[k] = entry, cost_in(entry), 0, ''
      local ttl_ms, score = try('PTTL', log), nil
      if type(ttl_ms) == 'table' then
        return -2, ttl_ms.err
      elseif ttl_ms > -2 then
        score = try('ZSCORE', log, '')
        if type(score) == 'table' then
          return ttl_ms, score.err
        elseif not score then
          local first = call('ZRANGE', log, 0, 0, 'WITHSCORES')
          name_of[k], score = first[1], first[2]
          windows_of[k] = { struct.unpack('>' .. rep('d', #first[1] / 8), first[1]) }
          windows_of[k][#windows_of[k]] = nil
        end
        sum_of[k] = -1 - score
      end
      return ttl_ms
    end

    -- Removes what has left a budget.
    trim = function(k, retention_us)
      local sum, until_us = sum_between(k, -1, now_us - retention_us)
      local last = format('%d', until_us)
      local removed = try('ZREMRANGEBYSCORE', KEYS[k], '0', last)
      if type(removed) == 'table' and not find(removed.err, 'MISCONF', 1, true) then
        call('ZREMRANGEBYSCORE', KEYS[k], '0', last)
      end
      sum_of[k] = sum_of[k] - sum
      local windows = windows_of[k]
      for i = 1, windows and #windows or 0, 3 do
        windows[i + 1] = windows[i + 2] < until_us and 0 or windows[i + 1] - sum
      end
    end

    -- Returns the sum of the costs in a window that is shorter than the log.
    used_of = function(k, window_us)
      local windows, at = windows_of[k] or {}, 1
      while windows[at] and windows[at] ~= window_us do
        at = at + 3
      end
      if not windows[at] then
        if at > 3 * most_windows then
          windows, at = { unpack(windows, 4) }, at - 3
        end
        windows[at], windows[at + 1], windows[at + 2] = window_us, 0, -1
      end
      local since_us, until_us, sum = math.max(now_us - window_us, -1), windows[at + 2], nil
      if since_us >= until_us then
        sum, windows[at + 2] = sum_between(k, until_us, since_us)
        windows[at + 1] = windows[at + 1] + sum
      else
        -- The clock has stepped back. The newest of what had left is in the window again, and counted back first.
        local log, from, to = KEYS[k], format('(%d', since_us), format('%d', until_us)
        local most = is_late and most_late or 1000
        local entries = call('ZRANGE', log, to, from, 'BYSCORE', 'REV', 'LIMIT', 0, most)
        read = read + #entries
        if #entries == most then
          -- With all others of the last one's timestamp.
          local first = call('ZSCORE', log, entries[most])
          is_cut, since_us = true, first - 1
          entries = call('ZRANGE', log, first, to, 'BYSCORE')
        end
        windows[at + 1], windows[at + 2] = windows[at + 1] - total(entries), since_us
        changed = changed or {}
        changed[k] = true
      end
      windows_of[k] = windows
      return sum_of[k] - windows[at + 1]
    end

    -- Returns the time until so much has left a window of a budget.
    wait_of = function(k, window_us, excess)
      local since, first, count, at_us = format('(%d', math.max(now_us - window_us, -1)), 0, 4, nil
      while first < (is_late and most_late or 4096) do
        read = read + count
        local found = call('ZRANGE', KEYS[k], since, '+inf', 'BYSCORE', 'LIMIT', first, count, 'WITHSCORES')
        for i = 1, #found, 2 do
          -- What was settled is next to its entry.
          if excess <= 0 and #found[i] == 24 then
            return at_us + window_us - now_us
          end
          excess, at_us = excess - cost_in(found[i]), found[i + 1]
        end
        if #found < 2 * count then
          -- No entry is left if the sums are too high: an earlier version counted a late check twice.
          return at_us and at_us + window_us - now_us or window_us
        end
        first, count = first + count, first + count
      end
      is_cut = is_late or is_cut
      return call('ZRANGE', KEYS[k], -1, -1, 'WITHSCORES')[2] + window_us - now_us
    end

    -- Gives the first entry of a budget its score and the bytes that it has to have.
    write = function(k, score)
      local log, windows, name = KEYS[k], windows_of[k], ''
      if windows then
        name = struct.pack('>' .. rep('d', #windows), unpack(windows))
      end
      local added = try('ZADD', log, score, name)
      if type(added) == 'table' then
        return added
      end
      -- Afterwards: a log without an entry would lose its TTL.
      if name ~= name_of[k] then
        call('ZREM', log, name_of[k])
        name_of[k] = name
      end
    end
  end

  for _ = 1, requests do
    -- Positions: in ARGV of the UUID (arg) and of the entry read last (value), in shape of the log (at), in numbers of the
    -- state (first).
    local member, state, first, at, value = ARGV[arg], admitted, n + 1, 8, arg
    local recorded_us, full_us, newest, refreshed, free
    n, is_late = first, read >= 1000
    for k = key, key + logs - 1 do
      local log, cost, retention_us, last = KEYS[k], shape[at], shape[at + 1], at + 4 + 2 * shape[at + 2]
      local counts, entries, ttl_ms, error, found_us = shape[at + 4], 0, nil, nil, nil
      if counts == budget then
        value = value + 1
        ttl_ms, error = open(k, ARGV[value])
        entries, cost = ttl_ms > -2 and 1 or 0, cost_of[k]
      else
        entries = try('ZCARD', log)
        error = type(entries) == 'table' and entries.err
      end
      if not error and entries > 0 then
        if (ttl_ms or call('PTTL', log)) > retention_us / 1000 + 1002 then
          -- The clock has stepped back. The new entry must not leave before the newest one. A microsecond later, so that
          -- not all leave together.
          newest = newest or {}
          newest[k] = call('ZRANGE', log, -1, -1, 'WITHSCORES')[2] + 1
        end
        if left_of ~= retention_us then
          left, left_of = format('%d', now_us - retention_us), retention_us
        end
        if counts == budget then
          if call('ZCOUNT', log, '0', left) > 0 then
            trim(k, retention_us)
          end
        elseif entries <= most_expired then
          local expired = try('ZREMRANGEBYSCORE', log, '-inf', left)
          if type(expired) == 'table' then
            -- A Redis that can't save its data takes no writes, and still has what denies. Other errors are of the call.
            expired = call(find(expired.err, 'MISCONF', 1, true) and 'ZCOUNT' or 'ZREMRANGEBYSCORE', log, '-inf', left)
          end
          entries = entries - expired
        else
          local expired = call('ZCOUNT', log, '-inf', left)
          local most = math.min(expired, is_late and cost or most_expired + cost)
          if most > 0 then
            local removed = try('ZREMRANGEBYRANK', log, 0, most - 1)
            if type(removed) == 'table' and not find(removed.err, 'MISCONF', 1, true) then
              call('ZREMRANGEBYRANK', log, 0, most - 1)
            end
            read = read + most
          end
          entries = entries - expired
        end
        if entries == 0 then
          -- Without an entry there is no log, and a node of a Cluster that gives the slot away refuses it from then on.
          local reply = try('ZCARD', log)
          error = type(reply) == 'table' and reply.err
        end
      end
      if error and state == denied then
        -- The denial by another log stands, as if this one were empty.
        value, counts, entries, error = counts == distinct and value + 1 or value, 0, 0, nil
      elseif error then
        state, errors = unusable, errors or {}
        errors[#errors + 1] = error
        break
      end
      if counts == in_flight or counts == distinct then
        local entry = member
        if counts == distinct then
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
        if counts == budget then
          used = window_us == retention_us and sum_of[k] or used_of(k, window_us)
        elseif entries > 0 and window_us ~= retention_us then
          used = call('ZCOUNT', log, format('(%d', now_us - window_us), '+inf')
        end
        local was_cut = is_cut
        if counts == budget and is_cut then
          -- The sum is not known yet. A denial by another log stands, as if this one were empty.
          used = 0
        elseif used + needed > limit then
          wait_us = window_us
          if needed > limit then
            -- It never fits.
          elseif counts == budget then
            wait_us = wait_of(k, window_us, used + needed - limit)
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
          if is_cut and not was_cut then
            used, wait_us = 0, 0
          else
            state, full_us = denied, full_us or {}
            full_us[k] = math.max(full_us[k] or 0, window_us)
          end
        end
        numbers[n + 1], numbers[n + 2] = used < limit and limit - used or 0, wait_us
        n = n + (wants_reset and 3 or 2)
      end
      at = last + 1 + shape[at + 3]
    end

    -- With one log that is no budget, and no penalty, an admission finds out by adding its entry. So does a new request, which
    -- may have been recorded, too: it was sent on a connection that was given up, and what became of it was written back.
    -- That it meets its own entry is no strike.
    if mode == again and (state == denied or state == admitted and logs + penalties + budgets > 1)
      or mode == new and state == denied and penalties > 0 then
      for k = key, key + logs - 1 do
        local entry = budgets > 0 and entry_of[k] or member
        local found_us = not (refreshed and refreshed[k]) and try('ZSCORE', KEYS[k], entry)
        recorded_us = recorded_us or type(found_us) == 'string' and found_us
      end
    end

    -- A request that meets a ban is denied. A request that a full quota denies is a strike, and enough
    -- strikes bring a ban. All denials within one length of the window after a strike are one episode,
    -- and only the first of them is a strike.
    if penalties > 0 and state ~= unusable then
      local k, record_at = key, key + logs
      at = 8
      while record_at < key + logs + 2 * penalties do
        local penalty, levels = at + 5 + 2 * shape[at + 2], shape[at + 3] - 3
        at = penalty + levels + 3
        if levels >= 0 then
          local record, strikes = KEYS[record_at], KEYS[record_at + 1]
          local max_strikes, within_us, decay_us = shape[penalty], shape[penalty + 1], shape[penalty + 2]
          local known, struck = try('HMGET', record, 'until', 'level', 'episode_until'), 0
          local error = known.err
          local until_us, level = tonumber(known[1] or 0), tonumber(known[2] or 0)
          local episode_us = tonumber(known[3] or 0)
          local counts = full_us and full_us[k] and max_strikes > 0 and mode ~= peek and not is_cut
          if not error and until_us > now_us and not recorded_us then
            state = denied
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
          if error and state ~= denied then
            state, errors = unusable, errors or {}
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

    if is_cut then
      state = state == denied and denied_anyway or state == admitted and not recorded_us and send_again or state
      is_cut = nil
    end

    local is_added, slot = state == admitted and not recorded_us and mode ~= peek, first + 1
    at = 8
    if is_added or wants_reset and state >= 0 then
      for k = key, key + logs - 1 do
        local log, cost, retention_us, last = KEYS[k], shape[at], shape[at + 1], at + 4 + 2 * shape[at + 2]
        local score, added = now, nil
        if newest and newest[k] and newest[k] > now_us then
          score, expires_of = format('%d', newest[k]), nil
        end
        if shape[at + 4] == budget then
          cost = cost_of[k]
        end
        if is_added and cost > 0 then
          if refreshed and refreshed[k] then
            added = try('ZADD', log, 'GT', score, refreshed[k])
          else
            local entry = shape[at + 4] == budget and entry_of[k] or member
            added = try('ZADD', log, 'NX', score, entry)
            if type(added) == 'table' and shape[at + 4] == budget and sum_of[k] > 0 and find(added.err, 'OOM', 1, true) then
              -- A server without memory refuses no write behind one that needs none, with which other logs begin.
              call('ZREMRANGEBYSCORE', log, 1, 0)
              added = try('ZADD', log, 'NX', score, entry)
            end
            if added == 0 then
              -- The request was recorded earlier. Its cost is in the sums of a budget.
              recorded_us, is_added = call('ZSCORE', log, entry), false
            elseif added == 1 and shape[at + 4] == budget then
              local windows = windows_of[k]
              for i = 1, windows and #windows or 0, 3 do
                -- After a clock step, what other policies have counted may be later.
                if score - windows[i + 2] <= 0 then
                  windows[i + 1] = windows[i + 1] + cost
                end
              end
              sum_of[k] = sum_of[k] + cost
              if changed then
                changed[k] = nil
              end
              added = write(k, format('%d', -1 - sum_of[k]))
            end
          end
          if type(added) == 'table' then
            -- A server without memory refuses the first write of a call. Other requests of the call may need none.
            state, errors = unusable, errors or {}
            errors[#errors + 1] = added.err
            break
          end
        end
        if is_added and cost > 0 then
          if expires_of ~= retention_us then
            expires_ms, expires_of = format('%d', (score + retention_us) / 1000 + 1001), retention_us
          end
          call('PEXPIREAT', log, expires_ms)
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
            local since = format('(%d', math.max(now_us - window_us, -1))
            local oldest = try('ZRANGE', log, since, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
            numbers[slot + 2] = oldest[2] and oldest[2] + window_us - now_us or 0
          end
          slot = slot + (wants_reset and 3 or 2)
        end
        at = last + 1 + shape[at + 3]
      end
    end

    if changed then
      for k in pairs(changed) do
        local failed = write(k, format('%d', -1 - sum_of[k]))
        -- A call that is sent again would not get any further.
        if failed and state == send_again then
          state, errors = unusable, errors or {}
          errors[#errors + 1] = failed.err
        elseif failed and state == denied_anyway then
          state = denied
        end
      end
      changed = nil
    end
    if state < 0 then
      n = first
    elseif recorded_us then
      state, n = recorded, n + 1
      numbers[n] = tonumber(recorded_us)
    end
    numbers[first] = state
    key, arg = key + logs + 2 * penalties, arg + 1 + values
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
