-- Appends entries to a run's log and tells whoever listens: the run's followers the entries, the partition's
-- `changes` channel the run's id. Needs: clock.
-- Each entry: {t = tag, e = envelope after its spliced members, m = meta, p = private part or '',
--              c = cause seq or -1, ci = 0-based index of the causing entry of this call or -1}
-- Times never run backwards within one log, whatever the clock does.
-- Replies with the first seq, the last seq and the last tag (unchanged head for no entries).
local function append(log, private, run, channel, entries, now)
  local head = redis.call('HMGET', run, 'last_seq', 'last_tag', 'last_ms')
  local seq = tonumber(head[1] or 0) or 0
  local tag = head[2] or '0'
  if #entries == 0 then
    return seq + 1, seq, tag
  end
  local at = math.max(now, tonumber(head[3] or 0) or 0)
  local stamp = wire_time(at)
  local first = seq + 1
  local notice = {}
  for i, entry in ipairs(entries) do
    seq = first + i - 1
    tag = entry.t
    local cause = 'null'
    if entry.ci >= 0 then
      cause = fmt(first + entry.ci)
    elseif entry.c >= 0 then
      cause = fmt(entry.c)
    end
    local envelope = '{"seq":' .. fmt(seq) .. ',"ts":"' .. stamp .. '","cause":' .. cause .. ',' .. entry.e
    local id = fmt(seq) .. '-' .. tag
    redis.call('XADD', log, id, 'e', envelope, 'm', entry.m)
    if entry.p ~= '' then
      redis.call('HSET', private, fmt(seq), entry.p)
    end
    notice[#notice + 1] = id .. '\n' .. entry.m .. '\n' .. envelope
  end
  redis.call('HSET', run, 'last_seq', fmt(seq), 'last_tag', tag, 'last_ms', fmt(at))
  redis.call('SPUBLISH', channel, table.concat(notice, '\n'))
  local tag_of, id = string.match(channel, '^(.-):n:(.*)$')
  redis.call('SPUBLISH', tag_of .. ':changes', id)
  return first, seq, tag
end
