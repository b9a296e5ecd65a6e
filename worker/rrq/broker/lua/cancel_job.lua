-- cancel_job: end a queued job, or have a running one ended by its worker.
-- needs: context, wake, flow, enqueue, batch, settle, give_back
-- The first of finish and cancel wins: a mark that is there when the finish comes turns it into a
-- cancellation; a finish that came first leaves nothing to cancel.
-- ARGV     1 key prefix   2 job id
-- Returns  {code, status}: 1 cancelled while queued   2 its worker gets the message   0 no such job
--          -1 it has ended already   -2 it runs on a worker that takes no messages (RRQ 0.7)
local id = ARGV[2]
local job = prefix .. 'job:' .. id
local seen = redis.pcall('HMGET', job, 'status', 'worker_id', 'queue_name', 'attempt_token',
  'job_unique_key', 'result_ttl_seconds', 'waited_for', 'claimed_queue', 'parked_in')
if seen.err or redis.call('EXISTS', job) == 0 then return {0, ''} end
local status, worker_id = string.upper(seen[1] or ''), seen[2]
-- Given back, a job is where it was claimed from, which need not be the queue it was made for.
-- Through pcall: a key that holds no queue does not hold the job either.
if redis.pcall('ZREM', home_queue(nil, seen[3]), id) == 1
  or redis.pcall('ZREM', home_queue(seen[8], seen[3]), id) == 1
  or (seen[9] and redis.pcall('ZREM', prefix .. 'parked:' .. seen[9], id) == 1) then
  redis.call('HSET', job, 'attempt_token', (seen[4] or '') .. '.cancelled')
  settle().mark_cancelled(id, tonumber(seen[6] or '') or 86400, seen[5], seen[7])
  return {1, status}
end
if status == 'ACTIVE' then
  if not worker_id or not call_or_repair('ZSCORE', prefix .. 'active:jobs:' .. worker_id, id) then
    return {-2, status}
  end
  redis.call('HSET', job, 'cancel_requested', '1')
  local cancel, control = prefix .. 'cancel:' .. worker_id, prefix .. 'control:' .. worker_id
  call_or_repair('SADD', cancel, id)
  redis.call('EXPIRE', cancel, 86400)
  call_or_repair('RPUSH', control, 'cancel')
  redis.call('LTRIM', control, -10, -1)
  redis.call('EXPIRE', control, 60)
  return {2, status}
end
return {-1, status}
