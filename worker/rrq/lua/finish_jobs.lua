-- finish_jobs: store the outcomes of a batch of attempts, each only if it still owns its job.
-- needs: context, wake, settle, give_back
-- The token is compared here, not in Python: between a read and a write another worker may claim.
-- An attempt that has ended marks its token, also against an 0.7 worker that would run on under it:
-- the same finish, sent again after a cut reply, answers "already applied".
-- KEYS     1 active set of the worker   2 counters   3 default dead letter list
-- ARGV     1 key prefix   2 worker id   3 dead letter TTL (s)   then per job: id, token, outcome, text, number, key, traceback
--            done       text result (JSON)   number result TTL (s)
--            retry      text error           number delay (ms)    key queue
--            dead       text error           number hash TTL (s)  key dead letter list
--            cancelled                       number result TTL (s)
--            back       text reason          number due (ms)      key queue (both without token only)
--          token '' = the caller never claimed: applied unless another worker holds the lock
-- Returns  per job: 1 stored   2 already applied   3 cancelled instead   0 fenced (forget this
--          attempt)   -1 the job key is not a hash, nothing written
local active, counters, default_dlq = KEYS[1], KEYS[2], KEYS[3]
local worker_id, dlq_ttl_s = ARGV[2], tonumber(ARGV[3])
local FIRST, FIELDS_PER_JOB = 3, 7

local ids, locks = {}, {}
for at = FIRST, #ARGV - 1, FIELDS_PER_JOB do
  ids[#ids + 1] = ARGV[at + 1]
  locks[#locks + 1] = prefix .. 'lock:job:' .. ARGV[at + 1]
end
local holders = redis.call('MGET', unpack(locks))
-- The first write is one that Redis allows when it is out of memory; the others may then follow.
sure('ZREM', active, '')

local completed_iso = iso(now_us, '+00:00')
local counted, free_locks, ended = {}, {}, {}

-- What the attempt still holds although the job is no longer its own: its lock and active entry
-- remain when the id was enqueued again meanwhile. A newer claim by this same worker is left alone.
local function forget(n, id, job, status)
  if status == 'ACTIVE' and redis.call('HGET', job, 'worker_id') == worker_id then return end
  if holders[n] == worker_id then
    free_locks[#free_locks + 1] = locks[n]
    wake(home_queue(nil, redis.call('HGET', job, 'queue_name')), 1)
  end
  ended[#ended + 1] = id
end

local outcomes = {}

function outcomes.done(id, job, seen, text, number)
  redis.call('HSET', job, 'status', 'COMPLETED', 'result', text, 'completion_time', completed_iso,
    'attempt_token', (seen[1] or '') .. OVER)
  set_expiry(job, number)
  release_unique(seen[4], id)
  tell_waiters(id, 'COMPLETED', seen[5], number)
end

function outcomes.retry(id, job, seen, text, number, queue, traceback)
  local kind = redis.call('TYPE', queue).ok
  if kind ~= 'zset' and kind ~= 'none' then
    bury(id, default_dlq, queue .. ' holds a ' .. kind .. ', not a queue, so the job could not be '
      .. 'tried again after: ' .. text, dlq_ttl_s, seen[4], seen[5])
    return
  end
  if traceback ~= '' then redis.call('HSET', job, 'traceback', traceback) end
  redis.call('HDEL', job, 'worker_id', 'claimed_queue', 'claimed_score')
  queue_retry(id, job, queue, now_ms + number, text, 'RETRYING')
  announce(queue)
end

function outcomes.dead(id, job, seen, text, number, dlq, traceback)
  count_attempt(job)
  if traceback ~= '' then redis.call('HSET', job, 'traceback', traceback) end
  bury(id, dlq, text, number, seen[4], seen[5])
end

function outcomes.cancelled(id, _, seen, _, number)
  mark_cancelled(id, number, seen[4], seen[5])
end

function outcomes.back(id, job, _, text, number, queue)
  redis.call('HSET', job, 'status', 'PENDING', 'last_error', text,
    'next_scheduled_run_time', iso(now_us))
  redis.call('PERSIST', job)
  redis.call('ZADD', queue, number, id)
  wake(queue, 1)
end

local function finish(n, at)
  local id, token, outcome = ids[n], ARGV[at + 2], ARGV[at + 3]
  local text, number = ARGV[at + 4], tonumber(ARGV[at + 5])
  local job = prefix .. 'job:' .. id
  local seen = redis.pcall('HMGET', job, 'attempt_token', 'status', 'cancel_requested',
    'job_unique_key', 'waited_for')
  if seen.err then
    ended[#ended + 1] = id
    return -1
  end
  if token == '' then
    if holders[n] and holders[n] ~= worker_id then return 0 end
  elseif seen[1] == token .. OVER then
    return 2
  elseif seen[1] ~= token then
    forget(n, id, job, seen[2])
    return 0
  elseif seen[2] ~= 'ACTIVE'
    and type(redis.pcall('ZSCORE', home_queue(nil, redis.call('HGET', job, 'queue_name')), id)) == 'string' then
    -- An 0.7 producer, which knows no token, has enqueued the id again while it ran.
    forget(n, id, job, seen[2])
    return 0
  end
  if outcome == 'back' and token ~= '' then
    return give_back(id, worker_id, text, {default_dlq, dlq_ttl_s}) == 1 and 1 or 3
  end
  if holders[n] == worker_id then free_locks[#free_locks + 1] = locks[n] end
  ended[#ended + 1] = id
  local cancelled = seen[3] and outcome ~= 'cancelled'
  if cancelled then outcome, number = 'cancelled', outcome == 'done' and number or 86400 end
  outcomes[outcome](id, job, seen, text, number, ARGV[at + 6], ARGV[at + 7])
  if outcome ~= 'done' then redis.call('HSET', job, 'attempt_token', (seen[1] or '') .. OVER) end
  counted[outcome] = (counted[outcome] or 0) + 1
  return cancelled and 3 or 1
end

local replies = {}
for n = 1, #ids do replies[n] = finish(n, FIRST + (n - 1) * FIELDS_PER_JOB) end
if #ended > 0 then redis.call('ZREM', active, unpack(ended)) end
if #free_locks > 0 then redis.call('DEL', unpack(free_locks)) end
local ended_here = 0
for outcome, number in pairs(counted) do
  count(counters, outcome, number)
  ended_here = ended_here + number
end
-- How fast a worker is, for whoever sizes a pool. Only where it is registered: nothing would expire the rest.
local record = prefix .. 'workers:info:' .. worker_id
if ended_here > 0 and redis.call('EXISTS', record) == 1 then redis.pcall('HINCRBY', record, 'ended', ended_here) end
return replies
