-- Lets a run start whose time has come: the event that says so, once, and its start on the command stream, or its
-- place in its thread.
-- class: relief
-- needs: clock append wake threads
-- KEYS 1 log (stream) 2 private (hash) 3 run (hash) 4 commands (stream) 5 leases (zset) 6 timers (zset)
--      7 threads (hash) 8 meta (hash)
-- ARGV 1 request (msgpack): run, channel, entries (one timer.fired, which is no input), claim_ms, behind (the last run of
--        its thread as it was read, or '')
-- returns {OK, last_seq, last_tag, now_ms}
-- refuses {DUPLICATE}  its time came before, or it ended
--         {HELD, remaining_ms}  not yet  {CLOSED} {NORUN}  the timer is removed, nothing is appended
--         {CHANGED, last}  another run is the last of its thread
-- O(1).
local q = cmsgpack.unpack(ARGV[1])
local log, private, run, commands, leases, timers, threads, meta =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local now = store_now(meta)
local member = 'start||' .. q.run
local due = redis.call('ZSCORE', timers, member)
if not due then
  return {'DUPLICATE'}
end
if tonumber(due) > now then
  return {'HELD', fmt(tonumber(due) - now)}
end
local r = redis.call('HMGET', run, 'last_seq', 'sealed', 'thread')
if not r[1] or r[2] == '1' then
  redis.call('ZREM', timers, member)
  return {r[1] and 'CLOSED' or 'NORUN'}
end
local runs = r[3] and runs_of(threads, r[3]) or {}
if (runs[#runs] or '') ~= q.behind then
  return {'CHANGED', runs[#runs] or ''}
end
local _, last, tag = append(log, private, run, q.channel, q.entries, now)
redis.call('ZREM', timers, member)
redis.call('HDEL', run, 'held_back')
if r[3] then
  join_thread(threads, r[3], runs, run, q.run)
end
wake(run, commands, leases, q.run, now, q.claim_ms)
return {'OK', fmt(last), tag, fmt(now)}
