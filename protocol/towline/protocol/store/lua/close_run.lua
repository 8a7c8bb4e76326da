-- The terminal commit: writes the last entries, ends all that was open, seals the log, and lets the next run of its
-- thread start.
-- class: relief
-- needs: clock append inbox fenced wake threads
-- KEYS 1 log (stream) 2 private (hash) 3 run (hash) 4 side (hash) 5 timers (zset) 6 meta (hash)
--      7 leases (zset) 8 done (zset) 9 index (zset) 10 threads (hash)
--      11 run (hash) 12 commands (stream), those of the heir, or its own
-- ARGV 1 request (msgpack): as commit.lua, and forced (bool: the closer does not run the code, so what is unseen
--        does not hold it back), prepared_at (seq; forced only), retain_ms
--        (before it may be archived, unless the run says another), heir (the run that waits for the end of this
--        one, or ''), claim_ms
-- returns {OK, first_seq, last_seq, last_tag, now_ms, input_seq}
-- refuses {NORUN} {CLOSED} {FENCED} {DIVERGED} {UNSEEN, input_seq, now_ms}; nothing written
--         A forced close prepared from a log that has grown since gets {CHANGED, last_seq}
--         {CHANGED, 'thread', heir}  another run than the caller knows waits for the end of this one, or none ('')
-- A repeat of the last number gets the stored answer. O(entries).
local q = cmsgpack.unpack(ARGV[1])
local log, private, run, side, timers, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local leases, done, index, threads, heir_run, heir_commands =
  KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local now = store_now(meta)
local refusal = check_fence(log, run, q)
if refusal then
  return refusal
end
if q.forced then
  local last = redis.call('HGET', run, 'last_seq')
  if last ~= fmt(q.prepared_at) then
    return {'CHANGED', last}
  end
elseif has_unseen(run, q) then
  return {'UNSEEN', redis.call('HGET', run, 'input_seq'), fmt(now)}
end
local thread = redis.call('HGET', run, 'thread')
local runs = thread and runs_of(threads, thread) or {}
local heir = heir_of(runs, q.run)
if heir ~= q.heir then
  return {'CHANGED', 'thread', heir}
end
local reply = write_commit(log, private, run, side, timers, index, q, now)
redis.call('HSET', run, 'sealed', '1', 'lease_until', '0', 'step', '')
redis.call('HDEL', run, 'closing', 'blocked', 'stopping', 'paused', 'held_back')
clear_inbox(side, index)
redis.call('ZREM', leases, q.run)
redis.call('ZREM', timers, 'cancel||' .. q.run, 'start||' .. q.run)
local retain_ms = tonumber(redis.call('HGET', run, 'retain_ms') or q.retain_ms)
redis.call('ZADD', done, fmt(now + retain_ms), q.run)
if thread then
  leave_thread(threads, thread, runs, q.run, heir, heir_run, heir_commands, leases, now, q.claim_ms)
end
return keep_reply(run, q, reply)
