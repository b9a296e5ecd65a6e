-- note_cron_entries: return up to when the ticks of cron entries are settled; an entry not seen before begins now.
-- needs: context
-- KEYS     1 last fired ticks
-- ARGV     1 key prefix   2 now (ms), as the caller read it from Redis   3... digest of each entry
-- Returns  for each entry its last fired tick in ms, or when it was first seen if none has fired
local last, settled = KEYS[1], {}
local seen_ms = math.min(now_ms, tonumber(ARGV[2]))
for i = 3, #ARGV do
  local stored = call_or_repair('HGET', last, ARGV[i]) or ''
  local at_ms = tonumber(string.match(stored, '^seen (%d+)$') or stored)
  -- As in fire_cron, a time after tomorrow is nonsense. The comparison also fails for what is no number.
  if not (at_ms and at_ms >= 0 and at_ms < now_ms + 86400000) then
    at_ms = seen_ms
    redis.call('HSET', last, ARGV[i], 'seen ' .. digits(seen_ms))
  end
  settled[i - 2] = math.floor(at_ms)
end
return settled
