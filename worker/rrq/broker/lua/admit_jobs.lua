-- admit_jobs: put every due job where it belongs: in its queue if it may start, parked if it may not.
-- needs: context, wake, flow
-- Claims do the same on their way. This is for a fleet of no workers: jobs that may not run ask for no pod, and those
-- whose time has come must be seen although no worker claims.
-- KEYS     the queues
-- ARGV     1 key prefix   2 most entries to look at in each queue
-- Returns  {jobs parked, jobs that came back, then per queue: -1, or if there is more behind those looked at, how many
--           of these may start}
local most = tonumber(ARGV[2])
if not is_controlled() then
  local nothing = {0, 0}
  for _ = 1, #KEYS do nothing[#nothing + 1] = -1 end
  return nothing
end
-- The first write is one that Redis allows when it is out of memory; the others may then follow.
call_or_repair('ZREM', prefix .. 'parked', '')
local _, back = flow().admit_parked(100, most)

local parked, reply = 0, {0, back}
for _, queue in ipairs(KEYS) do
  local may_start = -1
  if redis.call('TYPE', queue).ok == 'zset' then
    local page = redis.call('ZRANGEBYSCORE', queue, '-inf', now_ms, 'WITHSCORES', 'LIMIT', 0, most)
    local before, has_more = parked, #page == most * 2
    for i = 1, #page, 2 do
      local job = prefix .. 'job:' .. page[i]
      local name = redis.pcall('HGET', job, 'function_name')
      if type(name) == 'string' then
        local scopes = flow().scopes_of(job, name)
        local blocked, look_ms = flow().blocked_by(name, scopes)
        if blocked then
          if flow().park(page[i], job, name, blocked, queue, page[i + 1], look_ms) then has_more = true end
          parked = parked + 1
        elseif scopes then flow().pretend(scopes) end
      end
    end
    if parked > before and has_more then may_start = #page / 2 - (parked - before) end
  end
  reply[#reply + 1] = may_start
end
reply[1] = parked
return reply
