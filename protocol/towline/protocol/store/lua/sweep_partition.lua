-- Takes the turn to sweep one partition, so that one process at a time does.
-- class: relief
-- needs: clock
-- KEYS 1 meta (hash)
-- ARGV 1 request (msgpack): sweeper, turn_ms
-- returns {OK, now_ms}
-- refuses {HELD, remaining_ms}  another process has the turn
-- A turn that ends later than now + turn_ms is clamped: a clock that jumped back costs one turn. O(1).
local q = cmsgpack.unpack(ARGV[1])
local meta = KEYS[1]
local now = store_now(meta)
local r = redis.call('HMGET', meta, 'swept_until', 'sweeper')
local held_until = tonumber(r[1] or 0) or 0
if held_until > now and r[2] ~= q.sweeper then
  if held_until > now + q.turn_ms then
    held_until = now + q.turn_ms
    redis.call('HSET', meta, 'swept_until', fmt(held_until))
  end
  return {'HELD', fmt(held_until - now)}
end
redis.call('HSET', meta, 'swept_until', fmt(now + q.turn_ms), 'sweeper', q.sweeper)
return {'OK', fmt(now)}
