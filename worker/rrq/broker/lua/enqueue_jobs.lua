-- enqueue_jobs: store new jobs and queue them, a whole batch in one atomic step.
-- needs: context, wake, flow, enqueue, batch
-- An id that is used again is a new job: the new token fences a worker that still runs the old one.
-- KEYS     the queues, each once
-- ARGV     1 key prefix   2 token of this call   3 unique lock TTL (s)
--          then per job the fourteen arguments that shared/enqueue.lua names
-- Returns  now (us), then per job what shared/enqueue.lua says, or -2 when its function is disabled;
--          error RRQTYPE when a queue key holds something else, RRQOPTIONS when options make no sense
local token, unique_ttl_seconds = ARGV[2], tonumber(ARGV[3])

local refusal = wrong_queue(KEYS)
if refusal then return refusal end
local args, steps = ARGV, enqueue()
local step, enqueue_job, is_disabled = steps.JOB_ARGUMENTS, steps.enqueue_job, steps.is_disabled
for at = 3, #args - 1, step do
  if args[at + 14] ~= '' and not steps.read_options(args[at + 14]) then
    return redis.error_reply('RRQOPTIONS the options of job ' .. args[at + 1] .. ' make no sense')
  end
end

local replies, new_due = {now_us}, {}
for at = 3, #args - 1, step do
  local queue = KEYS[tonumber(args[at + 5])]
  local reply = is_disabled(args[at + 2]) and -2 or enqueue_job(args, at, queue, token, unique_ttl_seconds)
  replies[#replies + 1] = reply
  local due_ms = type(reply) == 'table' and reply[1] or reply
  if due_ms >= 0 and due_ms <= now_ms then new_due[queue] = (new_due[queue] or 0) + 1 end
end
for _, queue in ipairs(KEYS) do
  if new_due[queue] then wake(queue, new_due[queue]) end
  announce(queue)
end
return replies
