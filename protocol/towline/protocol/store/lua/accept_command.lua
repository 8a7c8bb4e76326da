-- Accepts a command: its entries, its receipt and the wake-up of the run, in one step.
-- class: either (the caller chooses: cancel, pause and decisions pass when memory is full)
-- needs: clock append inbox wake
-- KEYS 1 log (stream) 2 private (hash) 3 run (hash) 4 side (hash) 5 commands (stream) 6 leases (zset)
--      7 timers (zset) 8 meta (hash) 9 index (zset)
-- ARGV 1 request (msgpack): run, channel, claim_ms, nonce, receipt (side field), fingerprint, record (text to
--        keep under it), outcome (text, or '' while open), relies (list of {side field, value or ''}),
--        entries, side (list of {field, value}), input_index (0-based place of the newest
--        input among the entries, or -1), counts (bool), max_unapplied, deadline_ms
--        (cancel, or -1), index_add, index_remove (as commit.lua takes them), paused ('' to leave it, 'asked' while
--        a holder must still come to rest, '1', or '-' to take it back), was_paused (as it was read, or '*' for any),
--        was_held (1 or 0: whether the lease was given out when this was prepared; -1 for any)
-- returns {OK, first_seq, last_seq, last_tag, now_ms}
-- refuses {DUPLICATE, fingerprint, record, outcome or '', first_seq}  the id was used before; nothing written
--         {NORUN} {CLOSED, last_seq} {CHANGED, field}  what the caller relied on is no longer so
--         {FULL, unapplied}  too many commands wait to be applied
-- A repeat with the stored nonce gets the first answer. O(entries).
local q = cmsgpack.unpack(ARGV[1])
local log, private, run, side, commands, leases, timers, meta =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local index = KEYS[9]
local now = store_now(meta)
local r = redis.call('HMGET', run, 'last_seq', 'sealed', 'unapplied', 'stopping', 'paused', 'lease_until')
if not r[1] then
  return {'NORUN'}
end
local stored = redis.call('HGET', side, 'c|' .. q.receipt)
if stored then
  local c = cmsgpack.unpack(stored)
  if c.nonce == q.nonce then
    return {'OK', c.first, c.last, c.tag, fmt(now)}
  end
  return {'DUPLICATE', c.fingerprint, c.record, redis.call('HGET', side, 'o|' .. q.receipt) or '', c.first}
end
if r[2] == '1' then
  return {'CLOSED', r[1]}
end
for _, rely in ipairs(q.relies) do
  if (redis.call('HGET', side, rely[1]) or '') ~= rely[2] then
    return {'CHANGED', rely[1]}
  end
end
if q.was_paused ~= '*' and (r[5] or '') ~= q.was_paused then
  return {'CHANGED', 'paused'}
end
if q.was_held >= 0 and ((r[6] or '0') ~= '0') ~= (q.was_held == 1) then
  return {'CHANGED', 'lease_until'}
end
if q.counts and (tonumber(r[3] or 0) or 0) >= q.max_unapplied then
  return {'FULL', r[3]}
end
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
  local armed = tonumber(r[4] or 0) or 0
  if armed == 0 or q.deadline_ms < armed then
    redis.call('HSET', run, 'stopping', fmt(q.deadline_ms))
    redis.call('ZADD', timers, fmt(q.deadline_ms), 'cancel||' .. q.run)
  end
end
if q.input_index >= 0 then
  redis.call('HSET', run, 'input_seq', fmt(first + q.input_index))
  wake(run, commands, leases, q.run, now, q.claim_ms)
end
return {'OK', fmt(first), fmt(last), tag, fmt(now)}
