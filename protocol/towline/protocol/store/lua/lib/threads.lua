-- The unfinished runs of each thread, in order: the first is active, the others wait for those before them.
-- Needs: clock, wake.
local function runs_of(threads, thread)
  local stored = redis.call('HGET', threads, thread)
  return stored and cmsgpack.unpack(stored) or {}
end

local function keep_runs(threads, thread, runs)
  if #runs == 0 then
    redis.call('HDEL', threads, thread)
  else
    redis.call('HSET', threads, thread, cmsgpack.pack(runs))
  end
end

-- Puts a run behind `runs`, those of its thread as they stand; it may not start while there are any.
local function join_thread(threads, thread, runs, run, id)
  if #runs > 0 then
    redis.call('HSET', run, 'held_back', 'thread')
  end
  runs[#runs + 1] = id
  keep_runs(threads, thread, runs)
end

-- Who goes on when `id` ends: the second of the thread if `id` is the first, else nobody ('').
local function heir_of(runs, id)
  return runs[1] == id and runs[2] or ''
end

-- Takes a run out of its thread, and lets its heir start.
local function leave_thread(threads, thread, runs, id, heir, heir_run, heir_commands, leases, now, claim_ms)
  local left = {}
  for _, each in ipairs(runs) do
    if each ~= id then
      left[#left + 1] = each
    end
  end
  keep_runs(threads, thread, left)
  if heir ~= '' then
    redis.call('HDEL', heir_run, 'held_back')
    wake(heir_run, heir_commands, leases, heir, now, claim_ms)
  end
end
