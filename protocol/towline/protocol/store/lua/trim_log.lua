-- Removes the part of a live log that lies before an entry at which its run began anew (run.continued).
-- class: relief
-- needs: clock
-- KEYS 1 log (stream) 2 private (hash) 3 run (hash) 4 side (hash) 5 meta (hash)
-- ARGV 1 request (msgpack): run, epoch, nonce, at (cursor of the run.continued), head (cursor up to which the snapshot
--        was folded), snapshot (text), snapshot_seq, side (list of {field, value}: what must outlive the entries),
--        most (how many private parts go in one call)
-- returns {OK, first_seq, left, now_ms}  left: private parts that another call must remove
-- refuses {NORUN} {CLOSED} {FENCED}
--         {DIVERGED}  `at` or `head` is not in the log
--         {CHANGED, field}  `at` is no run.continued, the snapshot does not cover what would go, or an accepted
--         command waits to be applied; nothing written
-- Trimming only ever goes forward, so a repeat takes nothing more but private parts. O(entries).
local q = cmsgpack.unpack(ARGV[1])
local log, private, run, side, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now = store_now(meta)
local r = redis.call('HMGET', run, 'epoch', 'nonce', 'sealed', 'lease_until', 'first_seq', 'unapplied', 'private_from',
  'snapshot_seq')
if not r[1] then
  return {'NORUN'}
end
if r[3] == '1' then
  return {'CLOSED'}
end
if r[1] ~= fmt(q.epoch) or r[2] ~= q.nonce or r[4] == '0' then
  return {'FENCED'}
end
local at = tonumber(string.match(q.at, '^%d+'))
local found = redis.call('XRANGE', log, q.at, q.at)
if #found == 0 or #redis.call('XRANGE', log, q.head, q.head) == 0 then
  return {'DIVERGED'}
end
if not string.match(found[1][2][2], '^{"seq":%d+,"ts":"[^"]*","cause":%w+,"type":"run%.continued"') then
  return {'CHANGED', 'at'}
end
if q.snapshot_seq < at then
  return {'CHANGED', 'snapshot'}
end
if (r[6] or '0') ~= '0' then
  return {'CHANGED', 'unapplied'}
end
local first = math.max(at, tonumber(r[5] or 1) or 1)
redis.call('XTRIM', log, 'MINID', fmt(first) .. '-0')
redis.call('HSET', run, 'first_seq', fmt(first))
if q.snapshot_seq > (tonumber(r[8] or 0) or 0) then
  redis.call('HSET', run, 'snapshot', q.snapshot, 'snapshot_seq', fmt(q.snapshot_seq))
end
for _, pair in ipairs(q.side) do
  redis.call('HSET', side, pair[1], pair[2])
end
local from = tonumber(r[7] or 1) or 1
local till = math.min(first, from + q.most)
for seq = from, till - 1 do
  redis.call('HDEL', private, fmt(seq))
end
redis.call('HSET', run, 'private_from', fmt(till))
return {'OK', fmt(first), fmt(first - till), fmt(now)}
