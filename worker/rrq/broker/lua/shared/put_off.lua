-- put_off: give back, for later, a job whose worker does not have its function; and note which functions are missing.
-- needs: context, wake, settle, give_back

-- While it is put off no worker sees the job, so the delay is a part of what the job has waited since it first met such a
-- worker: one that has the function does not come much too late for it, and jobs that no worker can run cost ever less.
-- A quarter, because in a roll-out the job may meet several old workers in a row: with delays that double, a few of many
-- jobs would wait for a minute beside idle workers that have the function.
local PART, FIRST_DELAY_MS, LONGEST_DELAY_MS = 1 / 4, 1000, 60000

-- The names come from producers: only so many are kept, and none for longer than a day.
local MOST_MISSING, LONGEST_NAME, MISSING_SECONDS = 100, 200, 86400
local function note_missing(queue, name)
  if not name or #name > LONGEST_NAME then return end
  local missing = prefix .. 'functions:missing'
  call_or_repair('ZADD', missing, now_ms, cjson.encode({short_name(queue), name}))
  redis.call('ZREMRANGEBYSCORE', missing, '-inf', now_ms - MISSING_SECONDS * 1000)
  for _, oldest in ipairs(redis.call('ZRANGE', missing, 0, -1 - MOST_MISSING)) do redis.call('ZREM', missing, oldest) end
  redis.call('EXPIRE', missing, MISSING_SECONDS)
end

-- The time at which the job first met such a worker since it was enqueued or last ran.
local function first_met_ms(job)
  local since_ms = tonumber(redis.call('HGET', job, 'unknown_since_ms') or '')
  if since_ms and since_ms <= now_ms then return since_ms end
  redis.call('HSET', job, 'unknown_since_ms', digits(now_ms))
  return now_ms
end

-- `jitter` is a factor near 1, so that jobs that came together do not come back together. Returns whether the job was put
-- off: it may have been cancelled, or not be this worker's any more.
local function put_off_job(id, worker_id, reason, jitter, letters)
  local is_put_off = false
  -- Of many times in a row only the first is kept in the history of the job; the others would push out all else.
  settle().forget_troubles_of_earlier_life(prefix .. 'job:' .. id)
  local is_known = redis.call('HGET', prefix .. 'job:' .. id, 'unknown_since_ms')
  give_back(id, worker_id, reason, letters, function(job, _, seen)
    local waited_ms = now_ms - first_met_ms(job)
    local delay_ms = math.max(FIRST_DELAY_MS, math.min(waited_ms * PART, LONGEST_DELAY_MS)) * jitter
    local queue, due_ms = home_queue(seen[4], seen[6]), now_ms + math.floor(delay_ms)
    redis.call('HSET', job, 'status', 'PENDING', 'next_scheduled_run_time', iso(due_ms * 1000))
    settle().write_error(job, reason)
    -- A head start counts from when a job is first due.
    redis.call('HDEL', job, 'boost_ms')
    redis.call('PERSIST', job)
    redis.call('ZADD', queue, due_ms, id)
    wake_for(queue, id, due_ms)
    note_missing(queue, redis.call('HGET', job, 'function_name'))
    is_put_off = true
    return true
  end, is_known)
  return is_put_off
end

return {put_off_job = put_off_job}
