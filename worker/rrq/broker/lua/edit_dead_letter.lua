-- edit_dead_letter: change the arguments of a dead-lettered job before it is tried again.
-- needs: context
-- KEYS     1 dead letter list   2 job
-- ARGV     1 key prefix   2 job id   3 args (JSON)   4 kwargs (JSON)
-- Returns  1 changed   0 it is no dead letter (any more)
if type(redis.pcall('LPOS', KEYS[1], ARGV[2])) ~= 'number' then return 0 end
if redis.pcall('HGET', KEYS[2], 'status') ~= 'FAILED' then return 0 end
redis.call('HSET', KEYS[2], 'job_args', ARGV[3], 'job_kwargs', ARGV[4])
redis.call('HDEL', KEYS[2], 'job_params')
return 1
