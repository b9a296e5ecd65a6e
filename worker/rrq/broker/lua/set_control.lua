-- set_control: pause, resume or limit a queue, a function or a pool, for the whole fleet at once.
-- needs: context, wake, flow, audit
-- KEYS     1 pauses or limits set by people
-- ARGV     1 key prefix   2 target, such as function:send   3 value (JSON), '' = take it away
--          4 actor   5 action   6 detail (JSON)
-- Returns  1 changed   0 it was so already
local target, value = ARGV[2], ARGV[3]
local MOST_LET_IN = 1000
-- The first write is one that Redis allows when it is out of memory: a full queue is one that people want to pause.
call_or_repair('HDEL', KEYS[1], '')
if value == '' then
  if call_or_repair('HDEL', KEYS[1], target) == 0 then return 0 end
else
  call_or_repair('HSET', KEYS[1], target, value)
end
audit(ARGV[4], ARGV[5], target, ARGV[6])

local kind, name = string.match(target, '^(%a+):(.*)$')
if kind == 'queue' then
  wake(prefix .. 'queue:' .. name, 1000)
  announce(prefix .. 'queue:' .. name)
elseif kind == 'function' then
  is_controlled()
  -- What waits for this function is looked at now, and goes on being looked at by every claim until all are in.
  local own, keyed = 'f:' .. name, flow().keyed_prefix(name)
  -- Even if another program deleted the list of scopes.
  if redis.call('EXISTS', prefix .. 'parked:' .. own) == 1 then call_or_repair('ZADD', prefix .. 'parked', 0, own) end
  for _, scope in ipairs(call_or_repair('ZRANGE', prefix .. 'parked', 0, -1)) do
    if scope == own or string.sub(scope, 1, #keyed) == keyed then redis.call('ZADD', prefix .. 'parked', 0, scope) end
  end
  flow().admit_parked(100, MOST_LET_IN)
elseif kind == 'pool' then
  -- The operator, which sizes the pool, listens here; the name is no queue, which only costs it a look.
  announce(prefix .. 'queue:')
end
return 1
