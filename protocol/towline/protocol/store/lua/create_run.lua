-- Creates a run with its first event and its first command, if it has one, and puts its start on the command
-- stream, now or at a given time: all in one step.
-- class: growth
-- needs: clock append inbox wake accept
-- KEYS 1 log (stream) 2 private (hash) 3 run (hash) 4 side (hash) 5 commands (stream) 6 leases (zset)
--      7 timers (zset) 8 index (zset) 9 meta (hash)
-- ARGV 1 request (msgpack): run, nonce, fingerprint, owner, workflow, version, queue, channel, claim_ms,
--        entries (list, see lib/append), index (list of prefixes: the member is prefix .. ms .. '|' .. run),
--        side (list of {field, value}), start_ms (when it may start, 0 for now), retain_ms (how long it stays after
--        its end before it may be archived, -1 for what its closer says), command (as accept_command.lua takes it,
--        relying on nothing, or false)
-- returns {OK, last_seq, last_tag, now_ms}
-- refuses {EXISTS, owner, fingerprint, last_seq, last_tag, now_ms}  the id is taken; nothing written
--         {GONE, owner}  the run was deleted
-- A repeat with the stored nonce gets the first answer. O(entries).
local q = cmsgpack.unpack(ARGV[1])
local log, private, run, side, commands, leases, timers, index, meta =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local now = store_now(meta)
local known = redis.call('HMGET', run, 'create_nonce', 'owner', 'fingerprint', 'last_seq', 'last_tag', 'gone')
if known[6] then
  return {'GONE', known[2]}
end
if known[1] then
  if known[1] == q.nonce then
    return {'OK', known[4], known[5], fmt(now)}
  end
  return {'EXISTS', known[2], known[3], known[4], known[5], fmt(now)}
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
if q.command then
  _, last, tag = accept(log, private, run, side, timers, index, q.command, now)
end
wake(run, commands, leases, q.run, now, q.claim_ms)
return {'OK', fmt(last), tag, fmt(now)}
