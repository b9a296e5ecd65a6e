-- settle: write the outcome of an attempt, in the same way for every script that reports it.
-- needs: context, wake, flow, enqueue, batch

-- A count that is no number, which only another program can have written, starts anew.
local function count_attempt(job)
  local count = redis.pcall('HINCRBY', job, 'current_retries', 1)
  if type(count) ~= 'table' then return count end
  redis.call('HSET', job, 'current_retries', '1')
  return 1
end

-- Why the latest attempt did not complete its job. `error_type` names the exception that a handler raised, and is nil or
-- '' for what RRQ itself says: the type of an earlier attempt must not stand beside that.
local function write_error(job, text, error_type)
  if error_type and error_type ~= '' then
    redis.call('HSET', job, 'last_error', text, 'error_type', error_type)
  else
    redis.call('HSET', job, 'last_error', text)
    redis.call('HDEL', job, 'error_type')
  end
end

-- An attempt that ended by itself shows that the job does not take its worker along, and that its function is known.
local function forget_troubles(job)
  if redis.call('HDEL', job, 'unknown_since_ms', 'losses', 'loss_history') > 0 and redis.call('HGET', job, 'suspect') == 'lost' then
    redis.call('HDEL', job, 'suspect')
  end
end

-- What was counted in an earlier life of this id says nothing about the present one. Producers of an older version do not
-- know these fields, but each enqueue writes enqueue_time.
local function forget_troubles_of_earlier_life(job)
  local seen = redis.call('HMGET', job, 'enqueue_time', 'troubles_of')
  if seen[1] == seen[2] then return end
  forget_troubles(job)
  if seen[1] then redis.call('HSET', job, 'troubles_of', seen[1]) end
end

-- A failed attempt is counted and the job queued again. A queued job never has an expiry.
local function queue_retry(id, job, queue, due_ms, reason, status, error_type)
  local retries = count_attempt(job)
  forget_troubles(job)
  redis.call('HSET', job, 'status', status, 'next_scheduled_run_time', iso(due_ms * 1000))
  write_error(job, reason, error_type)
  redis.call('PERSIST', job)
  redis.call('ZADD', queue, due_ms, id)
  wake_for(queue, id, due_ms)
  return retries
end

-- The beginning of a text. RRQ 0.7 reads every field of a job as UTF-8: no letter may be cut in two.
local function beginning(text, most)
  local cut = string.sub(text, 1, most)
  return string.find(text, '^[\128-\191]', most + 1) and (string.gsub(cut, '[\192-\255][\128-\191]*$', '')) or cut
end

-- The history of a job that did not succeed at once: its last attempts, for people. The other fields of the hash
-- describe the attempt that succeeds.
local function note_attempt(job, outcome, reason, error_type)
  local seen = redis.call('HMGET', job, 'attempts', 'start_time', 'worker_id')
  local is_json, story = pcall(cjson.decode, seen[1] and #seen[1] < 65536 and seen[1] or '[]')
  if not is_json or type(story) ~= 'table' then story = {} end
  story[#story + 1] = {
    start = seen[2] or '', ['end'] = iso(now_us), worker = seen[3] or '', outcome = outcome,
    error = beginning(reason or '', 500),
  }
  if error_type and error_type ~= '' then story[#story].error_type = beginning(error_type, 200) end
  while #story > 20 do table.remove(story, 1) end
  local is_writable, text = pcall(cjson.encode, story)
  if is_writable then redis.call('HSET', job, 'attempts', text) end
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
local function bury(id, dlq, reason, ttl_seconds, unique_key, waited_for, error_type)
  local job = prefix .. 'job:' .. id
  redis.call('HSET', job, 'id', id, 'status', 'FAILED', 'completion_time', iso(now_us, '+00:00'))
  write_error(job, reason, error_type)
  -- A list key of another type must neither fail the batch nor hide the job.
  if type(redis.pcall('LPUSH', dlq, id)) == 'table' then redis.pcall('LPUSH', dlq .. ':overflow', id) end
  -- Two for one, so that a list that has grown long shrinks again.
  drop_expired_letters(dlq, 2)
  set_expiry(job, ttl_seconds)
  batch().release_unique(unique_key, id)
  batch().leave_batch(id, job, true)
  tell_waiters(id, 'FAILED', waited_for, ttl_seconds)
end

local function mark_cancelled(id, ttl_seconds, unique_key, waited_for)
  local job = prefix .. 'job:' .. id
  redis.call('HSET', job, 'status', 'CANCELLED', 'completion_time', iso(now_us, '+00:00'))
  set_expiry(job, ttl_seconds)
  batch().release_unique(unique_key, id)
  batch().leave_batch(id, job, true)
  tell_waiters(id, 'CANCELLED', waited_for, ttl_seconds)
end

return {forget_troubles_of_earlier_life = forget_troubles_of_earlier_life, count_attempt = count_attempt, write_error = write_error, queue_retry = queue_retry, note_attempt = note_attempt, tell_waiters = tell_waiters, drop_expired_letters = drop_expired_letters, bury = bury, mark_cancelled = mark_cancelled}
