-- enqueue_jobs: store new jobs and queue them, a whole batch in one atomic step.
-- needs: context, wake, enqueue
-- An id that is used again is a new job: whoever still runs the old one is fenced by the new token.
-- KEYS     the queues, each once
-- ARGV     1 key prefix   2 token of this call   3 unique lock TTL (s)
--          then per job the thirteen arguments that shared/enqueue.lua names
-- Returns  now (us), then per job its due time in ms, or -1 when its key is not a hash;
--          error RRQTYPE when a queue key holds something else
local token, unique_ttl_seconds = ARGV[2], tonumber(ARGV[3])

local refusal = wrong_queue(KEYS)
if refusal then return refusal end

local replies, new_due = {now_us}, {}
for at = 3, #ARGV - 1, JOB_ARGUMENTS do
  local queue = KEYS[tonumber(ARGV[at + 5])]
  local due_ms = enqueue_job(at, queue, token, unique_ttl_seconds)
  replies[#replies + 1] = due_ms
  if due_ms >= 0 and due_ms <= now_ms then new_due[queue] = (new_due[queue] or 0) + 1 end
end
for _, queue in ipairs(KEYS) do
  if new_due[queue] then wake(queue, new_due[queue]) end
  announce(queue)
end
return replies
