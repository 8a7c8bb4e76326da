-- Renews the leases of up to 100 runs of one partition, each for itself.
-- class: relief
-- needs: clock
-- KEYS 1 leases (zset) 2 meta (hash) 3.. run (hash), one a lease
-- ARGV 1 request (msgpack): ttl_ms, leases (list of {run, epoch, nonce, step})
-- returns {now_ms, then for each lease in order: {OK, input_seq, stopping_ms or 0} or {FENCED} or {CLOSED} or {NORUN}}
-- O(leases).
local q = cmsgpack.unpack(ARGV[1])
local leases, meta = KEYS[1], KEYS[2]
local now = store_now(meta)
local reply = {fmt(now)}
for i, lease in ipairs(q.leases) do
  local run = KEYS[i + 2]
  local r = redis.call('HMGET', run, 'epoch', 'nonce', 'lease_until', 'sealed', 'input_seq', 'stopping')
  if not r[1] then
    reply[#reply + 1] = {'NORUN'}
  elseif r[4] == '1' then
    reply[#reply + 1] = {'CLOSED'}
  elseif r[1] ~= fmt(lease.epoch) or r[2] ~= lease.nonce or r[3] == '0' then
    reply[#reply + 1] = {'FENCED'}
  else
    redis.call('HSET', run, 'lease_until', fmt(now + q.ttl_ms), 'lease_ms', fmt(q.ttl_ms),
      'heartbeat_ms', fmt(now), 'step', lease.step)
    redis.call('ZADD', leases, fmt(now + q.ttl_ms), lease.run)
    reply[#reply + 1] = {'OK', r[5], r[6] or '0'}
  end
end
return reply
