-- Hints again at a run whose lease or claim-by time has passed, unless a hint is still undelivered.
-- class: relief
-- needs: clock wake
-- KEYS 1 run (hash) 2 commands (stream) 3 leases (zset) 4 meta (hash)
-- ARGV 1 request (msgpack): run, group, claim_ms
-- returns {OK, now_ms}
-- refuses {HELD, remaining_ms}  not overdue; a time beyond now + lease is clamped, so that a clock that jumped back
--         costs one lease  {DUPLICATE, now_ms}  an undelivered hint exists; its
--         claim-by time is renewed
--         {CLOSED} {NORUN} {PARKED}  needs no worker; removed from leases
--         {CHANGED, closing}  who began to close it died: close it; its time is renewed. Without an accepted cancel
--         it is given back to the workers
-- O(1).
local q = cmsgpack.unpack(ARGV[1])
local run, commands, leases, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local now = store_now(meta)
local by = redis.call('ZSCORE', leases, q.run)
if not by then
  return {'PARKED'}
end
by = tonumber(by)
local r = redis.call('HMGET', run, 'last_seq', 'sealed', 'blocked', 'paused', 'hint', 'closing', 'stopping',
  'lease_until', 'lease_ms', 'held_back')
if by > now then
  local latest = latest_end(r[9], now, q.claim_ms)
  if by > latest then
    by = latest
    redis.call('ZADD', leases, fmt(by), q.run)
    if (tonumber(r[8] or 0) or 0) > by then
      redis.call('HSET', run, 'lease_until', fmt(by))
    end
  end
  return {'HELD', fmt(by - now)}
end
if not r[1] or r[2] == '1' then
  redis.call('ZREM', leases, q.run)
  return {r[1] and 'CLOSED' or 'NORUN'}
end
if r[6] == '1' then
  if r[7] then
    redis.call('ZADD', leases, fmt(now + q.claim_ms), q.run)
    return {'CHANGED', 'closing'}
  end
  redis.call('HDEL', run, 'closing')
end
if r[3] == '1' or r[4] == '1' or r[10] then
  -- A parked run gave its lease back, one that may not start has none: what still has an end is a dead closer's.
  redis.call('HSET', run, 'lease_until', '0')
  redis.call('ZREM', leases, q.run)
  return {'PARKED'}
end
if r[5] then
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', commands)) do
    local fields = {}
    for i = 1, #group, 2 do
      fields[group[i]] = group[i + 1]
    end
    if fields['name'] == q.group then
      local sent_ms, sent_n = string.match(fields['last-delivered-id'], '^(%d+)-(%d+)$')
      local told_ms, told_n = string.match(r[5], '^(%d+)-(%d+)$')
      local is_undelivered = tonumber(told_ms) > tonumber(sent_ms)
        or (tonumber(told_ms) == tonumber(sent_ms) and tonumber(told_n) > tonumber(sent_n))
      if is_undelivered and #redis.call('XRANGE', commands, r[5], r[5]) > 0 then
        redis.call('ZADD', leases, fmt(now + q.claim_ms), q.run)
        return {'DUPLICATE', fmt(now)}
      end
    end
  end
end
hint(run, commands, leases, q.run, now, q.claim_ms)
return {'OK', fmt(now)}
