-- shorten_leases: a hint that workers may be gone (pod object vanished, node not ready).
-- needs: context, announce_end
-- No proof: the lease ends after one more renewal interval, and a renewal voids the hint. A lease that does end when it
-- was announced counts against no job.
-- KEYS     1 leases
-- ARGV     1 key prefix   2 renewal interval (ms)   3… worker ids
-- Returns  how many leases were shortened
local shortened = 0
for i = 3, #ARGV do
  shortened = shortened
    + call_or_repair('ZADD', KEYS[1], 'XX', 'LT', 'CH', now_ms + tonumber(ARGV[2]), ARGV[i])
  announce_end(KEYS[1], ARGV[i])
end
return shortened
