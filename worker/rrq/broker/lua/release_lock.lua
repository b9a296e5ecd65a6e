-- release_lock: drop a processing lock and the active entry that goes with it.
-- needs: context
-- KEYS     1 lock
-- ARGV     1 key prefix   2 expected holder, '' = any   3 job id
-- Returns  1 released   0 absent, or held by another worker
local holder = redis.pcall('GET', KEYS[1])
if type(holder) ~= 'string' or (ARGV[2] ~= '' and holder ~= ARGV[2]) then return 0 end
redis.call('DEL', KEYS[1])
call_or_repair('ZREM', prefix .. 'active:jobs:' .. holder, ARGV[3])
return 1
