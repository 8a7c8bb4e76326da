-- What accepting a command checks and writes, all but the wake-up. Needs: clock, append, inbox.
-- q: as accept_command.lua takes it.

-- Replies with a finished refusal, or nil when all that the caller relied on holds.
local function refuse_acceptance(run, side, q)
  local r = redis.call('HMGET', run, 'unapplied', 'paused', 'lease_until')
  for _, rely in ipairs(q.relies) do
    if (redis.call('HGET', side, rely[1]) or '') ~= rely[2] then
      return {'CHANGED', rely[1]}
    end
  end
  if q.was_paused ~= '*' and (r[2] or '') ~= q.was_paused then
    return {'CHANGED', 'paused'}
  end
  if q.was_held >= 0 and ((r[3] or '0') ~= '0') ~= (q.was_held == 1) then
    return {'CHANGED', 'lease_until'}
  end
  if q.counts and (tonumber(r[1] or 0) or 0) >= q.max_unapplied then
    return {'FULL', r[1]}
  end
  return nil
end

-- Replies with the first seq, the last seq and the last tag.
local function accept(log, private, run, side, timers, index, q, now)
  local first, last, tag = append(log, private, run, q.channel, q.entries, now)
  redis.call('HSET', side, 'c|' .. q.receipt, cmsgpack.pack({
    nonce = q.nonce, fingerprint = q.fingerprint, record = q.record, first = fmt(first), last = fmt(last), tag = tag }))
  if q.outcome ~= '' then
    redis.call('HSET', side, 'o|' .. q.receipt, q.outcome)
  end
  for _, pair in ipairs(q.side) do
    redis.call('HSET', side, pair[1], pair[2])
  end
  change_inbox(side, index, q.run, q.index_add, q.index_remove, now)
  if q.paused == '-' then
    redis.call('HDEL', run, 'paused')
  elseif q.paused ~= '' then
    redis.call('HSET', run, 'paused', q.paused)
  end
  if q.counts then
    redis.call('HINCRBY', run, 'unapplied', 1)
  end
  if q.deadline_ms >= 0 then
    local armed = tonumber(redis.call('HGET', run, 'stopping') or 0) or 0
    if armed == 0 or q.deadline_ms < armed then
      redis.call('HSET', run, 'stopping', fmt(q.deadline_ms))
      redis.call('ZADD', timers, fmt(q.deadline_ms), 'cancel||' .. q.run)
    end
  end
  if q.input_index >= 0 then
    redis.call('HSET', run, 'input_seq', fmt(first + q.input_index))
  end
  return first, last, tag
end
