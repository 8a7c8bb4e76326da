-- Publishes unfinished text on a run's channel, and keeps the text so far of what changed; appends nothing.
-- class: growth
-- KEYS 1 run (hash) 2 text (hash)
--        The second only when there are texts to keep: it may be missing, and is named in no script that commits
-- ARGV 1 request (msgpack): channel, epoch, nonce, pieces (text, one JSON a line; '' for none),
--        texts (list of {message, text}), expires_ms
-- returns {OK}
-- refuses {NORUN} {CLOSED} {FENCED}; nothing published, nothing kept
-- A notice whose first line is `delta` holds pieces; any other holds entries. A kept text stands behind the seq
-- that the log had then, so that a reader can tell what was finished since. O(texts).
local q = cmsgpack.unpack(ARGV[1])
local r = redis.call('HMGET', KEYS[1], 'epoch', 'nonce', 'sealed', 'lease_until', 'last_seq')
if not r[1] then
  return {'NORUN'}
end
if r[3] == '1' then
  return {'CLOSED'}
end
if r[1] ~= string.format('%.0f', q.epoch) or r[2] ~= q.nonce or r[4] == '0' then
  return {'FENCED'}
end
for _, text in ipairs(q.texts) do
  redis.call('HSET', KEYS[2], text[1], r[5] .. '\n' .. text[2])
end
if #q.texts > 0 then
  redis.call('PEXPIRE', KEYS[2], q.expires_ms)
end
if q.pieces ~= '' then
  redis.call('SPUBLISH', q.channel, 'delta\n' .. q.pieces)
end
return {'OK'}
