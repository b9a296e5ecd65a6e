-- settle: write the outcome of an attempt, in one way, whoever reports it.
-- needs: context, wake

-- A count that is no number, which only a foreign hand can have written, starts anew.
local function count_attempt(job)
  local count = redis.pcall('HINCRBY', job, 'current_retries', 1)
  if type(count) ~= 'table' then return count end
  redis.call('HSET', job, 'current_retries', '1')
  return 1
end

-- A failed attempt is counted and the job queued again. A queued job never has an expiry.
local function queue_retry(id, job, queue, due_ms, reason, status)
  local retries = count_attempt(job)
  redis.call('HSET', job, 'status', status, 'last_error', reason,
    'next_scheduled_run_time', iso(due_ms * 1000))
  redis.call('PERSIST', job)
  redis.call('ZADD', queue, due_ms, id)
  wake_for(queue, id, due_ms)
  return retries
end

-- A deferred duplicate carries the unique key without owning the lock; only the owner frees it.
local function release_unique(unique_key, id)
  if not unique_key or unique_key == '' then return end
  local lock = prefix .. 'lock:unique:' .. unique_key
  if redis.pcall('GET', lock) == id then redis.call('DEL', lock) end
end

-- ttl_seconds: above 0 expire, 0 keep for ever, below 0 leave the expiry as it is.
local function set_expiry(key, ttl_seconds)
  -- Whole seconds, and ten years at most: Redis refuses anything else, and with it the batch.
  if ttl_seconds > 0 then
    redis.call('EXPIRE', key, digits(math.max(1, math.min(315360000, math.floor(ttl_seconds)))))
  elseif ttl_seconds == 0 then redis.call('PERSIST', key) end
end

-- The hash is the truth; the stream only wakes a client that said it waits. Without the question
-- every job would leave a stream of its own behind for a day.
local function tell_waiters(id, status, waited_for, ttl_seconds)
  if not waited_for then return end
  local events = prefix .. 'events:job:' .. id
  redis.pcall('XADD', events, 'MAXLEN', 10, '*', 'event',
    status == 'COMPLETED' and 'completed' or 'failed', 'job_id', id, 'status', status)
  set_expiry(events, ttl_seconds > 0 and ttl_seconds or 86400)
end

-- The hash of a dead letter expires, its entry on the list does not. Entries at the old end that have lost
-- their job are dropped, at most so many at a time, or the list would grow for as long as jobs die.
local function drop_expired_letters(dlq, most)
  for _ = 1, most do
    local oldest = redis.pcall('LINDEX', dlq, -1)
    if type(oldest) ~= 'string' or redis.call('EXISTS', prefix .. 'job:' .. oldest) == 1 then return end
    redis.call('RPOP', dlq)
  end
end

-- To the dead letters: the hash says why, and stays for ttl_seconds.
local function bury(id, dlq, reason, ttl_seconds, unique_key, waited_for)
  local job = prefix .. 'job:' .. id
  redis.call('HSET', job, 'id', id, 'status', 'FAILED', 'last_error', reason,
    'completion_time', iso(now_us, '+00:00'))
  -- A list key of another type must neither fail the batch nor hide the job.
  if type(redis.pcall('LPUSH', dlq, id)) == 'table' then redis.pcall('LPUSH', dlq .. ':overflow', id) end
  -- Two for one, so that a list that has grown long shrinks again.
  drop_expired_letters(dlq, 2)
  set_expiry(job, ttl_seconds)
  release_unique(unique_key, id)
  tell_waiters(id, 'FAILED', waited_for, ttl_seconds)
end

local function mark_cancelled(id, ttl_seconds, unique_key, waited_for)
  local job = prefix .. 'job:' .. id
  redis.call('HSET', job, 'status', 'CANCELLED', 'completion_time', iso(now_us, '+00:00'))
  set_expiry(job, ttl_seconds)
  release_unique(unique_key, id)
  tell_waiters(id, 'CANCELLED', waited_for, ttl_seconds)
end
