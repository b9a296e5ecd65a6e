-- finish_jobs: store the outcomes of a batch of attempts, each only if it still owns its job.
-- needs: context, wake, flow, enqueue, batch, settle, give_back, put_off, minute, statistics
-- The token is compared here, not in Python: between a read and a write another worker may claim.
-- An attempt that has ended marks its token, also against an 0.7 worker that would run on under it:
-- the same finish, sent again after a cut reply, answers "already applied".
-- KEYS     1 active set of the worker   2 counters   3 default dead letter list
-- ARGV     1 key prefix   2 worker id   3 dead letter TTL (s)   then per job: id, token, outcome, text, number, key, traceback,
--          type of the error or ''
--            done       text result (JSON)   number result TTL (s)
--            retry      text error           number delay (ms)    key queue
--            dead       text error           number hash TTL (s)  key dead letter list
--            cancelled                       number result TTL (s)
--            back       text reason          number due (ms)      key queue (both without token only)
--            unknown_function
--                       text reason          number factor of the delay, near 1 (with token only)
--          token '' = the caller never claimed: applied unless another worker holds the lock
-- Returns  per job: 1 stored   2 already applied   3 cancelled instead   0 fenced (forget this
--          attempt)   -1 the job key is not a hash, nothing written
local active, counters, default_dlq = KEYS[1], KEYS[2], KEYS[3]
local worker_id, dlq_ttl_s = ARGV[2], tonumber(ARGV[3])
local FIRST, FIELDS_PER_JOB = 3, 8

local ids, locks = {}, {}
for at = FIRST, #ARGV - 1, FIELDS_PER_JOB do
  ids[#ids + 1] = ARGV[at + 1]
  locks[#locks + 1] = prefix .. 'lock:job:' .. ARGV[at + 1]
end
local holders = redis.call('MGET', unpack(locks))
-- The first write is one that Redis allows when it is out of memory; the others may then follow.
call_or_repair('ZREM', active, '')

local completed_iso = iso(now_us, '+00:00')
local counted, free_locks, ended, recent = {}, {}, {}, {}

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
-- A batch has one less to wait for, a chain goes on; for jobs that have either. The chain comes last: its next job may
-- have this very id, and be the new life of it.
local function go_on(id, job, result, token)
  batch().leave_batch(id, job, false)
  local chain = redis.call('HGET', job, 'next')
  if chain then
    redis.call('HDEL', job, 'next')
    batch().follow_up(id, chain, result, token)
  end
end

function outcomes.done(id, job, seen, text, number)
  redis.call('HSET', job, 'status', 'COMPLETED', 'result', text, 'completion_time', completed_iso,
    'attempt_token', (seen[1] or '') .. OVER)
  set_expiry(job, number)
  -- Most jobs have neither, and need nothing else to be settled.
  if seen[4] then batch().release_unique(seen[4], id) end
  if seen[5] then settle().tell_waiters(id, 'COMPLETED', seen[5], number) end
  if seen[6] and seen[6] ~= ONLY_SLOTS then go_on(id, job, text, seen[1] or '') end
end

function outcomes.retry(id, job, seen, text, number, queue, traceback, error_type)
  local kind = redis.call('TYPE', queue).ok
  if kind ~= 'zset' and kind ~= 'none' then
    settle().bury(id, default_dlq, queue .. ' holds a ' .. kind .. ', not a queue, so the job could not be '
      .. 'tried again after: ' .. text, dlq_ttl_s, seen[4], seen[5], error_type)
    return
  end
  if traceback ~= '' then redis.call('HSET', job, 'traceback', traceback) end
  settle().note_attempt(job, 'retry', text, error_type)
  count_ended('retry', 1, queue)
  redis.call('HDEL', job, 'worker_id', 'claimed_queue', 'claimed_score', 'boost_ms')
  settle().queue_retry(id, job, queue, now_ms + number, text, 'RETRYING', error_type)
  announce(queue)
end

function outcomes.dead(id, job, seen, text, number, dlq, traceback, error_type)
  settle().count_attempt(job)
  if traceback ~= '' then redis.call('HSET', job, 'traceback', traceback) end
  settle().note_attempt(job, 'dead', text, error_type)
  local names = redis.call('HMGET', job, 'claimed_queue', 'queue_name')
  count_ended('dead', 1, home_queue(names[1], names[2]))
  settle().bury(id, dlq, text, number, seen[4], seen[5], error_type)
end

function outcomes.cancelled(id, _, seen, _, number)
  settle().mark_cancelled(id, number, seen[4], seen[5])
end

function outcomes.back(id, job, _, text, number, queue)
  redis.call('HSET', job, 'status', 'PENDING', 'next_scheduled_run_time', iso(now_us))
  settle().write_error(job, text)
  redis.call('PERSIST', job)
  redis.call('ZADD', queue, number, id)
  wake(queue, 1)
end

local function finish(n, at)
  local id, token, outcome = ids[n], ARGV[at + 2], ARGV[at + 3]
  local text, number = ARGV[at + 4], tonumber(ARGV[at + 5])
  local job = prefix .. 'job:' .. id
  local seen = redis.pcall('HMGET', job, 'attempt_token', 'status', 'cancel_requested',
    'job_unique_key', 'waited_for', 'extras')
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
  elseif seen[2] ~= 'ACTIVE' and flow().is_queued_again(id, job, home_queue(nil, redis.call('HGET', job, 'queue_name'))) then
    forget(n, id, job, seen[2])
    return 0
  end
  if outcome == 'back' and token ~= '' then
    return give_back(id, worker_id, text, {default_dlq, dlq_ttl_s}) == 1 and 1 or 3
  end
  if outcome == 'unknown_function' then
    return put_off().put_off_job(id, worker_id, text, number, {default_dlq, dlq_ttl_s}) and 1 or 3
  end
  if holders[n] == worker_id then free_locks[#free_locks + 1] = locks[n] end
  ended[#ended + 1] = id
  local slots = seen[6] and redis.call('HGET', job, 'slots')
  if slots then give_up_slots(id, job, slots) end
  local cancelled = seen[3] and outcome ~= 'cancelled'
  if cancelled then outcome, number = 'cancelled', outcome == 'done' and number or 86400 end
  outcomes[outcome](id, job, seen, text, number, ARGV[at + 6], ARGV[at + 7], ARGV[at + 8])
  if outcome ~= 'done' then redis.call('HSET', job, 'attempt_token', (seen[1] or '') .. OVER) end
  counted[outcome] = (counted[outcome] or 0) + 1
  -- Of many that went well a few are enough to look at.
  if outcome ~= 'retry' and (outcome ~= 'done' or #recent < 10) then recent[#recent + 1] = id end
  return cancelled and 3 or 1
end

local replies = {}
for n = 1, #ids do replies[n] = finish(n, FIRST + (n - 1) * FIELDS_PER_JOB) end
if #ended > 0 then redis.call('ZREM', active, unpack(ended)) end
if #free_locks > 0 then redis.call('DEL', unpack(free_locks)) end
-- After the entries that slots stand for, so that a slot found stale is one.
unblock_others()
local ended_here = 0
for outcome, number in pairs(counted) do
  count(counters, outcome, number)
  count_ended(outcome, number)
  ended_here = ended_here + number
end
note_recent(recent)
-- How fast a worker is, for the operator that sizes pools. Only where it is registered, as no other record expires.
local record = prefix .. 'workers:info:' .. worker_id
if ended_here > 0 and redis.call('EXISTS', record) == 1 then redis.pcall('HINCRBY', record, 'ended', ended_here) end
return replies
