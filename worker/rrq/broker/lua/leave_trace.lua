-- leave_trace: change the trace context of a job, if the attempt still owns it.
-- needs: context
-- Not a part of finish_jobs: that one is passed by every job, this one only by attempts that failed
-- and are traced. It comes just before the finish on the same connection.
-- KEYS     1 job
-- ARGV     1 key prefix   2 attempt token   3 trace context (JSON)
-- Returns  1 stored   0 the job is another attempt's by now, nothing written
local job = KEYS[1]
if redis.call('HGET', job, 'attempt_token') ~= ARGV[2] then return 0 end
redis.call('HSET', job, 'trace_context', ARGV[3])
return 1
