-- watch_job: look at a job, and ask for a completion event unless it has ended already.
-- needs: context
-- The wish and the look are one step, so that no end can fall between them.
-- KEYS     1 job
-- ARGV     1 key prefix   2 ask for an event 0/1
-- Returns  {status, result (JSON), last error, its type}, each possibly nil, or nil when there is no such job
local seen = redis.pcall('HMGET', KEYS[1], 'status', 'result', 'last_error', 'error_type')
if seen.err or redis.call('EXISTS', KEYS[1]) == 0 then return false end
local has_ended = seen[1] == 'COMPLETED' or seen[1] == 'FAILED' or seen[1] == 'CANCELLED'
if ARGV[2] == '1' and not has_ended then redis.call('HSET', KEYS[1], 'waited_for', '1') end
return seen
