-- Appends what a lease holder decided: events, timers, request states and outcomes, all or nothing.
-- class: relief
-- needs: clock append inbox fenced
-- KEYS 1 log (stream) 2 private (hash) 3 run (hash) 4 side (hash) 5 timers (zset) 6 meta (hash) 7 index (zset)
-- ARGV 1 request (msgpack): run, channel, epoch, nonce, commit, seen, entries, arm (list of {member, due_ms}),
--        disarm (list of members), side (list of {field, value}), index_add (list of {request, list of who it
--        waits for}), index_remove (list of requests), applied (count), recorded (bool: carries a
--        result), snapshot (text), snapshot_seq (0 for none), starts_from (map of how much of each list stands
--        before the first entry that starts a step or a child, or false for none)
-- returns {OK, first_seq, last_seq, last_tag, now_ms, input_seq}
--         {HELD, first_seq, last_seq, last_tag, now_ms, input_seq, k}  the run is paused, or about to be: what
--         stands before the first start, k entries, is written, the rest is not; the number is used up
-- refuses {NORUN} {CLOSED} {FENCED} {DIVERGED}; nothing written
-- A repeat of the last number gets the stored answer, also on a sealed run. O(entries).
local q = cmsgpack.unpack(ARGV[1])
local log, private, run, side, timers, meta, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local now = store_now(meta)
local refusal = check_fence(log, run, q)
if refusal then
  return refusal
end
local is_held = q.starts_from and redis.call('HEXISTS', run, 'paused') == 1
if is_held then
  cut_starts(q)
end
local reply = write_commit(log, private, run, side, timers, index, q, now)
if is_held then
  reply[1] = 'HELD'
  reply[7] = fmt(#q.entries)
end
return keep_reply(run, q, reply)
