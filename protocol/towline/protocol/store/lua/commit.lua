-- Appends what a lease holder decided: events, timers, request states and outcomes, all or nothing.
-- class: relief
-- needs: clock append fenced
-- KEYS 1 log (stream) 2 private (hash) 3 run (hash) 4 side (hash) 5 timers (zset) 6 meta (hash)
-- ARGV 1 request (msgpack): run, channel, epoch, nonce, commit, seen, entries, arm (list of {member, due_ms}),
--        disarm (list of members), side (list of {field, value}), applied (count), recorded (bool: carries a
--        result), snapshot (text), snapshot_seq (0 for none)
-- returns {OK, first_seq, last_seq, last_tag, now_ms, input_seq}
-- refuses {NORUN} {CLOSED} {FENCED} {DIVERGED}; nothing written
-- A repeat of the last number gets the stored answer, also on a sealed run. O(entries).
local q = cmsgpack.unpack(ARGV[1])
local log, private, run, side, timers, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local now = store_now(meta)
local refusal = check_fence(log, run, q)
if refusal then
  return refusal
end
return keep_reply(run, q, write_commit(log, private, run, side, timers, q, now))
