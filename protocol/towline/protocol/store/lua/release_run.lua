-- A last commit that gives the lease back: to wait, parked as blocked or paused, or for another worker at once.
-- class: relief
-- needs: clock append inbox fenced wake
-- KEYS 1 log (stream) 2 private (hash) 3 run (hash) 4 side (hash) 5 timers (zset) 6 meta (hash)
--      7 leases (zset) 8 commands (stream) 9 index (zset)
-- ARGV 1 request (msgpack): as commit.lua, and to (waiting, blocked, paused or hand_over), claim_ms
-- returns {OK, first_seq, last_seq, last_tag, now_ms, input_seq}
-- refuses {NORUN} {CLOSED} {FENCED} {DIVERGED}
--         {UNSEEN, input_seq, now_ms}  to wait only: an input stands behind `seen`; nothing written
--         {CHANGED, paused}  to pause only: the pause was taken back; nothing written
-- O(entries).
local q = cmsgpack.unpack(ARGV[1])
local log, private, run, side, timers, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local leases, commands, index = KEYS[7], KEYS[8], KEYS[9]
local now = store_now(meta)
local refusal = check_fence(log, run, q)
if refusal then
  return refusal
end
if q.to == 'waiting' and has_unseen(run, q) then
  return {'UNSEEN', redis.call('HGET', run, 'input_seq'), fmt(now)}
end
if q.to == 'paused' and redis.call('HEXISTS', run, 'paused') == 0 then
  return {'CHANGED', 'paused'}
end
local reply = write_commit(log, private, run, side, timers, index, q, now)
redis.call('HSET', run, 'lease_until', '0', 'step', '')
redis.call('ZREM', leases, q.run)
if q.to == 'blocked' then
  redis.call('HSET', run, 'blocked', '1', 'crashes', '0')
elseif q.to == 'paused' then
  redis.call('HSET', run, 'paused', '1', 'crashes', '0')
elseif q.to == 'hand_over' then
  hint(run, commands, leases, q.run, now, q.claim_ms)
end
return keep_reply(run, q, reply)
