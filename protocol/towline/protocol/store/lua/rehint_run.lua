-- Hints again at a run whose lease or claim-by time has passed, unless a hint is still undelivered.
-- class: relief
-- needs: clock wake
-- KEYS 1 run (hash) 2 commands (stream) 3 leases (zset) 4 meta (hash)
-- ARGV 1 request (msgpack): run, group, claim_ms
-- returns {OK, now_ms}
-- refuses {HELD, remaining_ms}  not overdue  {DUPLICATE}  an undelivered hint exists; its claim-by time is renewed
--         {CLOSED} {NORUN} {PARKED}  needs no worker; removed from leases
-- O(1).
local q = cmsgpack.unpack(ARGV[1])
local run, commands, leases, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local now = store_now(meta)
local by = redis.call('ZSCORE', leases, q.run)
if not by then
  return {'PARKED'}
end
if tonumber(by) > now then
  return {'HELD', fmt(tonumber(by) - now)}
end
local r = redis.call('HMGET', run, 'last_seq', 'sealed', 'blocked', 'paused', 'hint', 'closing')
if not r[1] or r[2] == '1' then
  redis.call('ZREM', leases, q.run)
  return {r[1] and 'CLOSED' or 'NORUN'}
end
if r[3] == '1' or r[4] == '1' or r[6] == '1' then
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
      local sent, told = string.match(fields['last-delivered-id'], '(%d+)-(%d+)'), r[5]
      local sent_n = tonumber(string.match(fields['last-delivered-id'], '-(%d+)$'))
      local told_ms, told_n = string.match(told, '^(%d+)-(%d+)$')
      local undelivered = tonumber(told_ms) > tonumber(sent)
        or (tonumber(told_ms) == tonumber(sent) and tonumber(told_n) > sent_n)
      if undelivered and #redis.call('XRANGE', commands, told, told) > 0 then
        redis.call('ZADD', leases, fmt(now + q.claim_ms), q.run)
        return {'DUPLICATE', fmt(now)}
      end
    end
  end
end
hint(run, commands, leases, q.run, now, q.claim_ms)
return {'OK', fmt(now)}
