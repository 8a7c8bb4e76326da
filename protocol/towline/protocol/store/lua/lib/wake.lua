-- Puts a run that needs a worker where one will find it. Needs: clock.
-- `paused` is '1' once the run has come to rest, 'asked' before: then a holder is still needed to get it there.
-- `held_back` says what a run waits for that may not start yet: `start_at`, its time, or `thread`, the runs before it.
-- Nothing else wakes it.

-- The latest end a lease or claim-by time can honestly have: what ends later was written before the clock jumped
-- back, and proves nobody alive.
local function latest_end(lease_ms, now, claim_ms)
  return now + math.max(claim_ms, tonumber(lease_ms or 0) or 0)
end

-- A live holder learns of inputs by itself; a parked run is fed nothing; anyone else gets a hint on the
-- command stream and a claim-by time, after which the sweep hints again. A run without a queue is taken again by
-- who started it: nobody reads a hint about it.
local function hint(run, commands, leases, id, now, claim_ms)
  local r = redis.call('HMGET', run, 'workflow', 'version', 'queue')
  if r[3] == '' then
    redis.call('ZADD', leases, fmt(now + claim_ms), id)
    return
  end
  local entry = redis.call('XADD', commands, '*', 'run', id, 'workflow', r[1], 'version', r[2])
  redis.call('HSET', run, 'hint', entry)
  redis.call('ZADD', leases, fmt(now + claim_ms), id)
end

local function wake(run, commands, leases, id, now, claim_ms)
  local r = redis.call('HMGET', run, 'lease_until', 'blocked', 'paused', 'lease_ms', 'held_back')
  local lease_until = tonumber(r[1] or 0) or 0
  local is_held = lease_until > now and lease_until <= latest_end(r[4], now, claim_ms)
  if is_held or r[2] == '1' or r[3] == '1' or r[5] then
    return
  end
  hint(run, commands, leases, id, now, claim_ms)
end
