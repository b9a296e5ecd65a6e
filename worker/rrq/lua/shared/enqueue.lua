-- enqueue: how one new job comes into being, for producers and for cron alike.
-- needs: context, wake

-- A duplicate of a unique job is deferred until the lock runs out, never refused.
local function due_after_unique(unique_key, id, due_ms, ttl_seconds)
  local lock = prefix .. 'lock:unique:' .. unique_key
  local remaining_s = redis.call('TTL', lock)
  -- The job's own lock, from a call whose answer got lost, holds it back from nothing.
  if redis.pcall('GET', lock) == id then return due_ms end
  if remaining_s > 0 then return math.max(due_ms, now_ms + remaining_s * 1000) end
  local ttl_s = math.max(ttl_seconds, math.floor((due_ms - now_ms) / 1000) + 1)
  redis.call('SET', lock, id, 'EX', ttl_s, 'NX')
  return due_ms
end

local JOB_ARGUMENTS = 13
local now_iso = iso(now_us)

-- Store and queue the job whose arguments follow ARGV[at]: id, function name, args (JSON), kwargs
-- (JSON), index of its queue (used by the caller), queue name as given, max retries, timeout (s),
-- result TTL (s), due ('' now, '+ms' from now, '@ms' absolute), unique key or '', trace context or '',
-- '1' when the producer chose the id.
-- Returns its due time in ms, or -1, with nothing written, when its key is not a hash.
local function enqueue_job(at, queue, token, unique_ttl_seconds)
  local id, due, unique_key, trace = ARGV[at + 1], ARGV[at + 10], ARGV[at + 11], ARGV[at + 12]
  local job = prefix .. 'job:' .. id
  local due_ms, due_iso = now_ms, now_iso
  if due ~= '' then
    local number = tonumber(string.sub(due, 2))
    due_ms = string.sub(due, 1, 1) == '+' and now_ms + number or math.max(0, number)
    due_iso = nil
  end
  if unique_key ~= '' then
    local kind = redis.call('TYPE', job).ok
    if kind ~= 'hash' and kind ~= 'none' then return -1 end
    local asked_ms = due_ms
    due_ms = due_after_unique(unique_key, id, due_ms, unique_ttl_seconds)
    if due_ms ~= asked_ms then due_iso = nil end
  end
  -- A chosen id may be queued elsewhere already: it moves. Ids that we made up are new.
  local old_queue = ARGV[at + 13] == '1' and redis.pcall('HGET', job, 'queue_name')
  if type(old_queue) == 'string' and home_queue(nil, old_queue) ~= queue then
    redis.pcall('ZREM', home_queue(nil, old_queue), id)
  end
  local new_fields = redis.pcall('HSET', job, 'id', id, 'function_name', ARGV[at + 2],
    'job_args', ARGV[at + 3], 'job_kwargs', ARGV[at + 4], 'enqueue_time', now_iso,
    'status', 'PENDING', 'current_retries', '0',
    'next_scheduled_run_time', due_iso or iso(due_ms * 1000), 'max_retries', ARGV[at + 7],
    'job_timeout_seconds', ARGV[at + 8], 'result_ttl_seconds', ARGV[at + 9],
    'queue_name', ARGV[at + 6], 'result', 'null', 'attempt_token', token)
  if type(new_fields) == 'table' then
    -- Out of memory must fail the whole call; only a key of the wrong type concerns this job alone.
    if not string.find(new_fields.err, 'WRONGTYPE', 1, true) then error(new_fields.err) end
    return -1
  end
  -- Fewer new fields than were written: the id was used before, and what its old life left behind,
  -- the expiry first of all, must not reach into the new one.
  if new_fields < 14 then
    redis.call('HDEL', job, 'completion_time', 'last_error', 'job_unique_key', 'trace_context',
      'worker_id', 'start_time', 'claimed_queue', 'claimed_score', 'cancel_requested',
      'waited_for', 'suspect', 'reserved_by', 'crashes', 'crash_history', 'traceback')
    redis.call('PERSIST', job)
    redis.call('DEL', prefix .. 'events:job:' .. id)
  end
  if unique_key ~= '' then redis.call('HSET', job, 'job_unique_key', unique_key) end
  if trace ~= '' then redis.call('HSET', job, 'trace_context', trace) end
  redis.call('ZADD', queue, due_ms, id)
  if due_ms > now_ms then wake_for(queue, id, due_ms) end
  return due_ms
end
