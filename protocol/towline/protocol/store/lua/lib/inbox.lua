-- The index of what waits for people, changed in the script that opens or ends it. Needs: clock.
-- A member is 'i|' .. who .. '|' .. ms .. '|' .. run .. '|' .. request. Which members a run has stands in one field
-- of its side hash, so that who ends a request need not know for whom it waited.
local INBOX = 'inbox'

local function inbox_of(side)
  local stored = redis.call('HGET', side, INBOX)
  return stored and cmsgpack.unpack(stored) or {}
end

-- opened: list of {request, list of who}; ended: list of requests. O(both).
local function change_inbox(side, index, id, opened, ended, now)
  if #opened == 0 and #ended == 0 then
    return
  end
  local inbox = inbox_of(side)
  for _, request in ipairs(ended) do
    for _, member in ipairs(inbox[request] or {}) do
      redis.call('ZREM', index, member)
    end
    inbox[request] = nil
  end
  for _, pair in ipairs(opened) do
    local members = {}
    for i, who in ipairs(pair[2]) do
      members[i] = 'i|' .. who .. '|' .. fmt(now) .. '|' .. id .. '|' .. pair[1]
      redis.call('ZADD', index, 0, members[i])
    end
    inbox[pair[1]] = members
  end
  redis.call('HSET', side, INBOX, cmsgpack.pack(inbox))
end

local function clear_inbox(side, index)
  for _, members in pairs(inbox_of(side)) do
    for _, member in ipairs(members) do
      redis.call('ZREM', index, member)
    end
  end
  redis.call('HDEL', side, INBOX)
end
