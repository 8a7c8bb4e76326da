-- Creates a run with its first event and its first command, if it has one, and puts its start on the command
-- stream, now, at a given time, or once the runs of its thread before it have ended: all in one step.
-- class: growth
-- needs: clock append inbox wake accept threads
-- KEYS 1 log (stream) 2 private (hash) 3 run (hash) 4 side (hash) 5 commands (stream) 6 leases (zset)
--      7 timers (zset) 8 index (zset) 9 meta (hash) 10 threads (hash)
--      11 log (stream) 12 private (hash) 13 run (hash) 14 side (hash) 15 commands (stream), those of the run to
--      interrupt, or its own
-- ARGV 1 request (msgpack): run, nonce, fingerprint, owner, workflow, version, queue, channel, claim_ms,
--        entries (list, see lib/append), index (list of prefixes: the member is prefix .. ms .. '|' .. run),
--        side (list of {field, value}), start_ms (when it may start, 0 for now), retain_ms (how long it stays after
--        its end before it may be archived, -1 for what its closer says), command (as accept_command.lua takes it,
--        relying on nothing, or false), thread (field of the threads, or ''), behind (the last run of the thread as
--        it was read, or ''), max_runs (of a thread), interrupt (a cancel of the first run of the thread, as
--        accept_command.lua takes it, or false), instead (an id that was reserved under this one, of which no run
--        came, or '')
-- returns {OK, last_seq, last_tag, now_ms}
-- refuses {EXISTS, owner, fingerprint, last_seq, last_tag, now_ms}  the id is taken; nothing written
--         {GONE, owner}  the run was deleted
--         {CHANGED, 'thread' or what else the cancel relied on}  read the thread again
--         {CHANGED, 'reserved', id}  the id stands for the key of a run of a thread
--         {FULL, runs}  too many runs wait in the thread
-- A repeat with the stored nonce gets the first answer. O(entries).
local q = cmsgpack.unpack(ARGV[1])
local log, private, run, side, commands, leases, timers, index, meta =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local threads, first_run, first_side = KEYS[10], KEYS[13], KEYS[14]
local now = store_now(meta)
local known = redis.call('HMGET', run, 'create_nonce', 'owner', 'fingerprint', 'last_seq', 'last_tag', 'gone', 'reserved')
if known[6] then
  return {'GONE', known[2]}
end
if known[1] then
  if known[1] == q.nonce then
    return {'OK', known[4], known[5], fmt(now)}
  end
  return {'EXISTS', known[2], known[3], known[4], known[5], fmt(now)}
end
if known[7] and known[7] ~= q.instead then
  return {'CHANGED', 'reserved', known[7]}
end
local joins = q.thread ~= '' and q.start_ms <= now
local runs = joins and runs_of(threads, q.thread) or {}
if (runs[#runs] or '') ~= q.behind or q.interrupt and runs[1] ~= q.interrupt.run then
  return {'CHANGED', 'thread'}
end
if #runs >= q.max_runs then
  return {'FULL', fmt(#runs)}
end
local refusal = q.interrupt and refuse_acceptance(first_run, first_side, q.interrupt)
if refusal then
  return refusal
end
local _, last, tag = append(log, private, run, q.channel, q.entries, now)
redis.call('HSET', run, 'create_nonce', q.nonce, 'fingerprint', q.fingerprint, 'owner', q.owner,
  'workflow', q.workflow, 'version', q.version, 'queue', q.queue, 'created_ms', fmt(now),
  'input_seq', fmt(last), 'epoch', '0', 'nonce', '', 'commit_no', '0', 'lease_until', '0', 'crashes', '0',
  'unapplied', '0')
redis.call('HSET', private, '-', '')
redis.call('HSET', side, '-', '')
for _, pair in ipairs(q.side) do
  redis.call('HSET', side, pair[1], pair[2])
end
for _, prefix in ipairs(q.index) do
  redis.call('ZADD', index, 0, prefix .. fmt(now) .. '|' .. q.run)
end
if q.retain_ms >= 0 then
  redis.call('HSET', run, 'retain_ms', fmt(q.retain_ms))
end
if q.start_ms > now then
  redis.call('HSET', run, 'held_back', 'start_at')
  redis.call('ZADD', timers, fmt(q.start_ms), 'start||' .. q.run)
end
if q.thread ~= '' then
  redis.call('HSET', run, 'thread', q.thread)
end
if joins then
  join_thread(threads, q.thread, runs, run, q.run)
end
if q.interrupt then
  accept(KEYS[11], KEYS[12], first_run, first_side, timers, index, q.interrupt, now)
  wake(first_run, KEYS[15], leases, q.interrupt.run, now, q.claim_ms)
end
if q.command then
  _, last, tag = accept(log, private, run, side, timers, index, q.command, now)
end
wake(run, commands, leases, q.run, now, q.claim_ms)
return {'OK', fmt(last), tag, fmt(now)}
