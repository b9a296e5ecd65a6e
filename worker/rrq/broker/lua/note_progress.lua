-- note_progress: keep what a running attempt says of itself, as long as it owns its job.
-- needs: context
-- KEYS     1 job
-- ARGV     1 key prefix   2 token of the attempt   3 field: progress or cursor   4 value (JSON)
-- Returns  1 kept   0 the attempt no longer owns the job
if redis.pcall('HGET', KEYS[1], 'attempt_token') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
return 1
