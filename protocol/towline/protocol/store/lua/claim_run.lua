-- Gives a worker the lease of a run that needs one, with a new fence.
-- class: relief
-- needs: clock
-- KEYS 1 run (hash) 2 leases (zset) 3 meta (hash)
-- ARGV 1 request (msgpack): run, nonce (of the fence, drawn once a call), holder, ttl_ms, version, closing
--        (bool: take it even from a live holder, to close it), poison_at (crashes)
-- returns {OK or POISON, epoch, last_seq, last_tag, input_seq, crashes, lapsed holder or '', lease_until_ms,
--          now_ms, stopping_ms or 0}; POISON: the lease is given, but only to park the run
-- refuses {NORUN} {CLOSED} {HELD, remaining_ms} {PARKED}  nobody needs to run it now
--         {CHANGED, version}  it is pinned to another version
-- A repeat with the stored nonce gets the first answer. A lease end beyond now + ttl is clamped, so that a clock
-- that jumped back costs one lease. O(1).
local q = cmsgpack.unpack(ARGV[1])
local run, leases, meta = KEYS[1], KEYS[2], KEYS[3]
local now = store_now(meta)
local r = redis.call('HMGET', run, 'last_seq', 'last_tag', 'input_seq', 'epoch', 'nonce', 'lease_until', 'holder',
  'crashes', 'sealed', 'blocked', 'paused', 'version', 'closing', 'stopping', 'claim_reply')
if not r[1] then
  return {'NORUN'}
end
if r[5] == q.nonce and r[15] then
  return cmsgpack.unpack(r[15])
end
if r[9] == '1' then
  return {'CLOSED'}
end
local lease_until = tonumber(r[6] or 0) or 0
if lease_until > now + q.ttl_ms then
  lease_until = now + q.ttl_ms
  redis.call('ZADD', leases, fmt(lease_until), q.run)
  redis.call('HSET', run, 'lease_until', fmt(lease_until))
end
if not q.closing then
  if lease_until > now then
    return {'HELD', fmt(lease_until - now)}
  end
  if r[10] == '1' or r[11] == '1' or r[13] == '1' or not redis.call('ZSCORE', leases, q.run) then
    return {'PARKED'}
  end
  if r[12] ~= q.version then
    return {'CHANGED', r[12]}
  end
end
local crashes = tonumber(r[8] or 0) or 0
local lapsed = ''
if lease_until > 0 then
  lapsed = r[7] or ''
  if not q.closing then
    crashes = crashes + 1
  end
end
local epoch = (tonumber(r[4] or 0) or 0) + 1
lease_until = now + q.ttl_ms
local word = 'OK'
if crashes >= q.poison_at and not q.closing then
  word = 'POISON'
end
local reply = {word, fmt(epoch), r[1], r[2], r[3], fmt(crashes), lapsed, fmt(lease_until), fmt(now), r[14] or '0'}
redis.call('HSET', run, 'epoch', fmt(epoch), 'nonce', q.nonce, 'commit_no', '0', 'commit_reply', '',
  'lease_until', fmt(lease_until), 'lease_ms', fmt(q.ttl_ms), 'holder', q.holder, 'heartbeat_ms', fmt(now), 'step', '', 'crashes', fmt(crashes),
  'claim_reply', cmsgpack.pack(reply))
if q.closing then
  redis.call('HSET', run, 'closing', '1')
end
redis.call('ZADD', leases, fmt(lease_until), q.run)
return reply
