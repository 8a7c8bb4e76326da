-- Creates a run with its first event and puts its start on the command stream, in one step.
-- class: growth
-- needs: clock append wake
-- KEYS 1 log (stream) 2 private (hash) 3 run (hash) 4 side (hash) 5 commands (stream) 6 leases (zset)
--      7 index (zset) 8 meta (hash)
-- ARGV 1 request (msgpack): run, nonce, fingerprint, owner, workflow, version, queue, channel, claim_ms,
--        entries (list, see lib/append), index (list of prefixes: the member is prefix .. ms .. '|' .. run),
--        side (list of {field, value})
-- returns {OK, last_seq, last_tag, now_ms}
-- refuses {EXISTS, owner, fingerprint, last_seq, last_tag, now_ms}  the id is taken; nothing written
--         {GONE}  the run was deleted
-- A repeat with the stored nonce gets the first answer. O(entries).
local q = cmsgpack.unpack(ARGV[1])
local log, private, run, side, commands, leases, index, meta =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local now = store_now(meta)
local known = redis.call('HMGET', run, 'create_nonce', 'owner', 'fingerprint', 'last_seq', 'last_tag', 'gone')
if known[6] then
  return {'GONE'}
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
hint(run, commands, leases, q.run, now, q.claim_ms)
return {'OK', fmt(last), tag, fmt(now)}
