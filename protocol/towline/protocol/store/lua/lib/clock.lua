-- The store's clock. A test store may carry an offset in its partition's meta; nothing else moves time.
local function fmt(number)
  return string.format('%.0f', number)
end

local function store_now(meta)
  local time = redis.call('TIME')
  local offset = tonumber(redis.call('HGET', meta, 'clock_offset_ms') or 0) or 0
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + offset
end

-- RFC 3339 UTC with milliseconds; civil date from days as in the proleptic Gregorian calendar.
local function wire_time(ms)
  local days = math.floor(ms / 86400000)
  local rest = ms - days * 86400000
  local z = days + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day = doy - math.floor((153 * mp + 2) / 5) + 1
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  local hour = math.floor(rest / 3600000)
  local minute = math.floor(rest / 60000) % 60
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%03dZ',
    year, month, day, hour, minute, math.floor(rest / 1000) % 60, rest % 1000)
end
