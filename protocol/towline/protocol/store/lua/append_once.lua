-- Appends what a lease holder announces beside its numbered commits, once for each name it has in the side hash.
-- class: relief
-- needs: clock append
-- KEYS 1 log (stream) 2 private (hash) 3 run (hash) 4 side (hash) 5 meta (hash)
-- ARGV 1 request (msgpack): run, channel, epoch, nonce, field (of the side hash), value, entries
-- returns {OK, first_seq, last_seq, last_tag, now_ms}
-- refuses {NORUN} {CLOSED} {FENCED}  nothing written
--         {DUPLICATE, value}  the field stands already, to the holder of the lease
-- O(entries).
local q = cmsgpack.unpack(ARGV[1])
local log, private, run, side, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now = store_now(meta)
local r = redis.call('HMGET', run, 'epoch', 'nonce', 'sealed', 'lease_until')
if not r[1] then
  return {'NORUN'}
end
local same = r[1] == fmt(q.epoch) and r[2] == q.nonce
local stored = redis.call('HGET', side, q.field)
if same and stored then
  return {'DUPLICATE', stored}
end
if r[3] == '1' then
  return {'CLOSED'}
end
if not same or r[4] == '0' then
  return {'FENCED'}
end
local first, last, tag = append(log, private, run, q.channel, q.entries, now)
redis.call('HSET', side, q.field, q.value)
return {'OK', fmt(first), fmt(last), tag, fmt(now)}
