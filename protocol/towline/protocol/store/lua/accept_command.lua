-- Accepts a command: its entries, its receipt and the wake-up of the run, in one step.
-- class: either (the caller chooses: cancel, pause and decisions pass when memory is full)
-- needs: clock append inbox wake accept
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
local r = redis.call('HMGET', run, 'last_seq', 'sealed')
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
local refusal = refuse_acceptance(run, side, q)
if refusal then
  return refusal
end
local first, last, tag = accept(log, private, run, side, timers, index, q, now)
if q.input_index >= 0 then
  wake(run, commands, leases, q.run, now, q.claim_ms)
end
return {'OK', fmt(first), fmt(last), tag, fmt(now)}
