-- publish_limits: have the limits that an application declares hold for the whole fleet.
-- needs: context, wake, flow
-- KEYS     1 declared limits
-- ARGV     1 key prefix   2 source: whose declarations these are   3 '1' = only where nothing is declared yet
--          then per limit: target, value (JSON)
-- Returns  how many changed; those of the same source that are no longer declared are taken away
local source, changed, declared = ARGV[2], 0, {}
local is_known = redis.call('EXISTS', KEYS[1]) == 1
if is_known and ARGV[3] == '1' then return 0 end
local stored = is_known and flow().read_objects(KEYS[1], {}) or {}
for at = 4, #ARGV - 1, 2 do
  declared[ARGV[at]] = true
  if redis.pcall('HGET', KEYS[1], ARGV[at]) ~= ARGV[at + 1] then
    call_or_repair('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
    changed = changed + 1
  end
end
for target, limit in pairs(stored) do
  if limit.source == source and not declared[target] then changed = changed + redis.call('HDEL', KEYS[1], target) end
end
if changed > 0 then
  for _, scope in ipairs(call_or_repair('ZRANGE', prefix .. 'parked', 0, -1)) do
    redis.call('ZADD', prefix .. 'parked', 0, scope)
  end
end
return changed
