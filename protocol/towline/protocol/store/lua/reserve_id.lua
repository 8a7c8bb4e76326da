-- Keeps under an Idempotency-Key the id that a run of a thread will have: such an id lies where the thread does.
-- class: growth
-- KEYS 1 run (hash), of the id that the key alone would give
-- ARGV 1 request (msgpack): reserved (the id), instead (the id kept before, of which no run came, or '')
-- returns {OK}
-- refuses {EXISTS}  the key stands for a run without a thread
--         {DUPLICATE, reserved}  another id is kept
-- O(1).
local q = cmsgpack.unpack(ARGV[1])
local r = redis.call('HMGET', KEYS[1], 'create_nonce', 'gone', 'reserved')
if r[1] or r[2] then
  return {'EXISTS'}
end
if r[3] and r[3] ~= q.reserved and r[3] ~= q.instead then
  return {'DUPLICATE', r[3]}
end
redis.call('HSET', KEYS[1], 'reserved', q.reserved)
return {'OK'}
