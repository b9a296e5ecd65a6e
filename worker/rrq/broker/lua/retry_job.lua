-- retry_job: count a failed attempt and queue the job again, without touching its lock.
-- needs: context, wake, flow, enqueue, batch, settle
-- KEYS     1 job   2 queue
-- ARGV     1 key prefix   2 job id   3 due (ms)   4 error   5 status
-- Returns  the new number of retries
local refusal = wrong_queue({KEYS[2]})
if refusal then return refusal end
-- It runs no more, whatever program retries it; its slots are free.
local slots = redis.pcall('HGET', KEYS[1], 'slots')
redis.call('HDEL', KEYS[1], 'boost_ms')
if type(slots) == 'string' then flow().vacate(ARGV[2], KEYS[1], slots) end
return settle().queue_retry(ARGV[2], KEYS[1], KEYS[2], tonumber(ARGV[3]), ARGV[4], ARGV[5])
