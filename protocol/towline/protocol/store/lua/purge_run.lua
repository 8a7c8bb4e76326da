-- Deletes a run that has ended: all that it was goes; a tombstone stays, so that nobody gets its id again.
-- class: relief
-- needs: clock inbox
-- KEYS 1 log (stream) 2 private (hash) 3 run (hash) 4 side (hash) 5 leases (zset) 6 done (zset) 7 index (zset)
--      8 meta (hash)
-- ARGV 1 request (msgpack): run, by (who deletes it), relies (version of the run's access as it was read, '' for
--        none), kept (list of {side field, value}: who could read it), unlisted (list of index prefixes: the member
--        is prefix .. created ms .. '|' .. run)
-- returns {OK, now_ms}
-- refuses {NORUN} {GONE}  it was deleted before; nothing written
--         {CHANGED, field}  it has not ended, or access is another than the caller read; nothing written
-- In `done` the run gets a negative score: bytes of it may lie outside the store until somebody has removed them.
-- What may be missing (unfinished text) or is unknown (timers) goes before this call: a sealed run gets none anew.
-- O(log).
local q = cmsgpack.unpack(ARGV[1])
local log, private, run, side, leases, done, index, meta =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local now = store_now(meta)
local r = redis.call('HMGET', run, 'last_seq', 'sealed', 'gone', 'access', 'created_ms', 'owner')
if r[3] then
  return {'GONE'}
end
if not r[1] then
  return {'NORUN'}
end
if r[2] ~= '1' then
  return {'CHANGED', 'sealed'}
end
if (r[4] or '') ~= q.relies then
  return {'CHANGED', 'access'}
end
clear_inbox(side, index)
redis.call('UNLINK', log, private, side, run)
redis.call('HSET', run, 'gone', fmt(now), 'gone_by', q.by, 'owner', r[6],
  'access', fmt((tonumber(r[4] or 0) or 0) + 1))
redis.call('HSET', side, '-', '')
for _, pair in ipairs(q.kept) do
  redis.call('HSET', side, pair[1], pair[2])
end
for _, prefix in ipairs(q.unlisted) do
  redis.call('ZREM', index, prefix .. (r[5] or '0') .. '|' .. q.run)
end
redis.call('ZREM', leases, q.run)
redis.call('ZADD', done, '-1', q.run)
return {'OK', fmt(now)}
