-- announce_end: the lease of a worker will end as it stands, for a reason that is no fault of its jobs.
-- needs: context
-- Written down as the end itself, so that a renewal, which moves the end, takes it back.
local function announce_end(leases, id)
  local record, ends = prefix .. 'workers:info:' .. id, redis.call('ZSCORE', leases, id)
  if ends and redis.call('EXISTS', record) == 1 then redis.pcall('HSET', record, 'announced_end', ends) end
end
