-- The checks of every write by a lease holder, in their order. Needs: clock, append, inbox.
-- q: epoch, nonce, commit (number), seen (cursor). Replies with a finished answer, or nil when all hold.
local function check_fence(log, run, q)
  local r = redis.call('HMGET', run, 'epoch', 'nonce', 'commit_no', 'commit_reply', 'sealed', 'lease_until')
  if not r[1] then
    return {'NORUN'}
  end
  local same = r[1] == fmt(q.epoch) and r[2] == q.nonce
  if same and r[3] == fmt(q.commit) and r[4] and r[4] ~= '' then
    return cmsgpack.unpack(r[4])
  end
  if r[5] == '1' then
    return {'CLOSED'}
  end
  if not same or r[6] == '0' then
    return {'FENCED'}
  end
  if tonumber(r[3]) + 1 ~= q.commit or #redis.call('XRANGE', log, q.seen, q.seen) == 0 then
    return {'DIVERGED'}
  end
  return nil
end

-- Writes the entries of a commit and all that must stand with them; replies with the answer, not yet stored.
local function write_commit(log, private, run, side, timers, index, q, now)
  local first, last, tag = append(log, private, run, q.channel, q.entries, now)
  for _, timer in ipairs(q.arm) do
    redis.call('ZADD', timers, fmt(timer[2]), timer[1])
  end
  for _, member in ipairs(q.disarm) do
    redis.call('ZREM', timers, member)
  end
  for _, pair in ipairs(q.side) do
    redis.call('HSET', side, pair[1], pair[2])
  end
  change_inbox(side, index, q.run, q.index_add, q.index_remove, now)
  if q.applied > 0 then
    redis.call('HINCRBY', run, 'unapplied', -q.applied)
  end
  if q.recorded then
    redis.call('HSET', run, 'crashes', '0')
  end
  if q.snapshot_seq > 0 and q.snapshot_seq > (tonumber(redis.call('HGET', run, 'snapshot_seq') or 0) or 0) then
    redis.call('HSET', run, 'snapshot', q.snapshot, 'snapshot_seq', fmt(q.snapshot_seq))
  end
  return {'OK', fmt(first), fmt(last), tag, fmt(now), redis.call('HGET', run, 'input_seq')}
end

local function keep_reply(run, q, reply)
  redis.call('HSET', run, 'commit_no', fmt(q.commit), 'commit_reply', cmsgpack.pack(reply))
  return reply
end

-- Cuts a commit before its first start. `starts_from` says how much of each list stands before it.
local function cut_starts(q)
  local from = q.starts_from
  for _, name in ipairs({'entries', 'arm', 'disarm', 'side', 'index_add', 'index_remove'}) do
    for i = #q[name], from[name] + 1, -1 do
      q[name][i] = nil
    end
  end
  q.applied = from.applied
end

-- Whether an input stands in the log that the holder had not fed to its machine.
local function has_unseen(run, q)
  local seen = tonumber(string.match(q.seen, '^%d+'))
  return (tonumber(redis.call('HGET', run, 'input_seq') or 0) or 0) > seen
end
