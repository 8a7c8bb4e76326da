-- Takes from what one caller may still spend, over all gateways: a bucket, kept as the time at which it is full again.
-- class: relief
-- KEYS 1 rate (string); it expires once it would be full, and may be missing: it is the only key
-- ARGV 1 request (msgpack): burst_ms, per_s, least, most, forced (also beyond what is there)
-- returns {OK, taken, wait_ms} wait_ms: until anything is left, 0 if something is
-- refuses {FULL, wait_ms}, fewer than `least` are there; nothing taken
-- A bucket that a clock set back would make endless is cut to a few bursts. O(1).
local q = cmsgpack.unpack(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
local each_ms = 1000 / q.per_s
local full_at = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0))
full_at = math.min(full_at, now + 4 * q.burst_ms)
local room = math.floor((now + q.burst_ms - full_at) / each_ms + 0.001)
local taken = math.min(q.most, math.max(room, q.forced and q.least or 0))
if taken < q.least then
  return {'FULL', string.format('%.0f', math.ceil(q.least * each_ms - (now + q.burst_ms - full_at)))}
end
full_at = full_at + taken * each_ms
redis.call('SET', KEYS[1], string.format('%.4f', full_at), 'PX', string.format('%.0f', math.ceil(full_at - now) + 1))
return {'OK', string.format('%.0f', taken), string.format('%.0f', math.max(0, math.ceil(full_at - now - q.burst_ms)))}
