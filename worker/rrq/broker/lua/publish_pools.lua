-- publish_pools: say how pools stand, for dashboards: the latest of each, and what was decided about some over time.
-- needs: context
-- KEYS     1 hash of pools   then the streams of those with a decision to note
-- ARGV     1 key prefix   2 entries that a stream keeps, about   3 how long it is kept after the last (s)
--          4 fields and values of an entry, together   5 how many pools are gone   then their names
--          then how many are here, then each as name and JSON, then per stream the fields and values of its entry
-- Returns  how many pools were written
local pools, most, keep_s, width = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local at = 5
for _ = 1, tonumber(ARGV[at]) do
  at = at + 1
  call_or_repair('HDEL', pools, ARGV[at])
end
at = at + 1
local count = tonumber(ARGV[at])
for _ = 1, count do
  call_or_repair('HSET', pools, ARGV[at + 1], ARGV[at + 2])
  at = at + 2
end
for s = 2, #KEYS do
  call_or_repair('XADD', KEYS[s], 'MAXLEN', '~', most, '*', unpack(ARGV, at + 1, at + width))
  redis.call('EXPIRE', KEYS[s], keep_s)
  at = at + width
end
return count
