-- awaited: whom the fleet waits for after a restart of Redis; see await_owners in renew_leases.
local AWAITED = prefix .. 'workers:awaited'

-- It has said what it holds, or is gone. After the last one claims are answered again.
local function await_no_more(id)
  if call_or_repair('SREM', AWAITED, id) == 1 and redis.call('EXISTS', AWAITED) == 0 then
    call_or_repair('HDEL', prefix .. 'guard', 'claim_not_before_ms', 'restarted_ms')
  end
end
