-- Changes who may reach a run: grants and shares, beside the log, with their event while the log is open.
-- class: either (the caller chooses: taking access away passes when memory is full)
-- needs: clock append
-- KEYS 1 log (stream) 2 private (hash) 3 run (hash) 4 side (hash) 5 index (zset) 6 meta (hash)
-- ARGV 1 request (msgpack): run, channel, relies (version of the run's access as it was read, '' for none),
--        entries (written while the log is open), set (list of {side field, value}), unset (list of side fields),
--        listed (list of index prefixes), unlisted (list of index prefixes: the member is
--        prefix .. created ms .. '|' .. run)
-- returns {OK, version, now_ms}
-- refuses {NORUN} {GONE} {CHANGED, version}  access is another than the caller read; nothing written
-- A repeat finds its own version and is told CHANGED: read again, and there is nothing left to do. O(entries).
local q = cmsgpack.unpack(ARGV[1])
local log, private, run, side, index, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local now = store_now(meta)
local r = redis.call('HMGET', run, 'last_seq', 'sealed', 'gone', 'access', 'created_ms')
if r[3] then
  return {'GONE'}
end
if not r[1] then
  return {'NORUN'}
end
if (r[4] or '') ~= q.relies then
  return {'CHANGED', r[4] or ''}
end
if r[2] ~= '1' then
  append(log, private, run, q.channel, q.entries, now)
end
for _, pair in ipairs(q.set) do
  redis.call('HSET', side, pair[1], pair[2])
end
for _, field in ipairs(q.unset) do
  redis.call('HDEL', side, field)
end
for _, prefix in ipairs(q.listed) do
  redis.call('ZADD', index, 0, prefix .. (r[5] or '0') .. '|' .. q.run)
end
for _, prefix in ipairs(q.unlisted) do
  redis.call('ZREM', index, prefix .. (r[5] or '0') .. '|' .. q.run)
end
local version = fmt((tonumber(r[4] or 0) or 0) + 1)
redis.call('HSET', run, 'access', version)
return {'OK', version, fmt(now)}
