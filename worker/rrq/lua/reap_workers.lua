-- reap_workers: give back the jobs of workers that are gone.
-- needs: context, wake, flow, enqueue, batch, settle, give_back, awaited, guard, minute, statistics
-- Called with no name it sweeps for leases that have ended. Called with a name it is a death
-- certificate: proof (a wait status, a terminated container) that this incarnation runs no more.
-- Proof is exempt from the outage guard, which only protects workers that may still be alive.
-- KEYS     1 leases   2 guard   3 active workers   4 counters
-- ARGV     1 key prefix   2 lease (ms), where no worker has announced another   3 most jobs to give back in this call
--          4 dead letter list   5 dead letter TTL (s)   6 crash limit   7 lost limit
--          with a certificate: 8 worker id   9 incarnation   10 cause as JSON, '' = known, and not a crash,
--          'unknown' = the process is dead, and nobody saw why
-- Returns  {jobs given back, jobs buried, workers reaped, more to do 0/1, put off until ms or -1}
local leases, guard, active_workers, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lease_ms, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local dlq, dlq_ttl_s, crash_limit, lost_limit
local certified, incarnation, cause = ARGV[8], ARGV[9], ARGV[10]
local returned, buried, reaped, seen_jobs = 0, 0, 0, 0

-- A list of the last ten crashes or losses, as JSON in a field of the job; returns it. What another program has written
-- there, and what cannot be encoded again, such as an infinite number, is left out: the job must come back to its queue
-- in any case.
local function add_to_history(job, field, last)
  local history = redis.call('HGET', job, field)
  local is_readable, entries = pcall(cjson.decode, history and #history < 65536 and history or '[]')
  if not is_readable or type(entries) ~= 'table' then entries = {} end
  entries[#entries + 1] = last
  while #entries > 10 do table.remove(entries, 1) end
  local is_writable, text = pcall(cjson.encode, entries)
  redis.call('HSET', job, field, is_writable and text or cjson.encode({last}))
  return entries
end

-- A count that is not a number, which only another program can have written, starts anew.
local function count_up(job, field)
  local number = redis.pcall('HINCRBY', job, field, 1)
  if type(number) ~= 'table' then return number end
  redis.call('HSET', job, field, '1')
  return 1
end

local function bury(id, fields, reason)
  settle().bury(id, dlq, reason, dlq_ttl_s, fields[8], fields[10])
  buried = buried + 1
  return true
end

-- Fair blame. Whatever was in hand in a crash becomes a suspect and reruns freely; only a crash
-- while running alone counts.
local function blame_for_crash(other_jobs)
  return function(job, id, fields)
    redis.call('HSET', job, 'suspect', '1')
    add_to_history(job, 'crash_history', cjson.decode(cause))
    if other_jobs > 0 or count_up(job, 'crashes') < crash_limit then return false end
    return bury(id, fields, 'The job ended its worker process ' .. crash_limit
      .. ' times while running alone; last: ' .. cause)
  end
end

local function list_losses(entries)
  local lines = {}
  for _, loss in ipairs(entries) do
    if type(loss) == 'table' then
      lines[#lines + 1] = string.format('%s %s, which held %s other jobs; %s other workers were lost at that time',
        tostring(loss.at), tostring(loss.worker_id), tostring(loss.other_jobs), tostring(loss.other_workers))
    end
  end
  return table.concat(lines, '\n')
end

-- When a job ends its whole pod, no supervisor is left to report it. A worker that is lost for no known reason counts
-- against all jobs that it held; but a long job may lose its machine again and again. So at the limit a job becomes a
-- suspect, and is buried only when it loses one more worker while running alone.
local function blame_for_loss(loss)
  return function(job, id, fields)
    settle().forget_troubles_of_earlier_life(job)
    local losses, history = count_up(job, 'losses'), add_to_history(job, 'loss_history', loss)
    if losses < lost_limit then return false end
    redis.call('HSETNX', job, 'suspect', 'lost')
    if losses == lost_limit or loss.other_jobs > 0 then return false end
    return bury(id, fields, 'The worker was lost ' .. losses .. ' times while running this job, for no known reason; the '
      .. 'last time the job ran alone (worker_lost_limit is ' .. lost_limit .. '). It may need more memory than its '
      .. 'container has.\n' .. list_losses(history))
  end
end

local function forget_worker(id)
  sure('ZREM', leases, id)
  redis.pcall('ZREM', active_workers, id)
  redis.call('DEL', prefix .. 'workers:info:' .. id, prefix .. 'health:worker:' .. id,
    prefix .. 'cancel:' .. id, prefix .. 'control:' .. id)
  await_no_more(id)
  reaped = reaped + 1
end

-- The settings of the worker itself, as it announced them when it registered; those of the caller where it did not.
local function read_settings(id)
  local own = redis.pcall('HMGET', prefix .. 'workers:info:' .. id, 'dlq', 'dlq_ttl_s', 'crash_limit', 'lost_limit')
  if own.err then own = {} end
  dlq, dlq_ttl_s = own[1] or ARGV[4], tonumber(own[2] or '') or tonumber(ARGV[5])
  crash_limit = tonumber(own[3] or '') or tonumber(ARGV[6])
  lost_limit = tonumber(own[4] or '') or tonumber(ARGV[7])
end

-- `blame` takes how many other jobs the worker held, and returns what is asked of each job before it is given back; nil or
-- false when no job is to blame.
local function reap(id, reason, blame)
  read_settings(id)
  local active = prefix .. 'active:jobs:' .. id
  local jobs = sure('ZRANGE', active, 0, most - seen_jobs - 1)
  -- Very many jobs are given back in portions; the last one of them was not alone.
  local record, size = prefix .. 'workers:info:' .. id, redis.call('ZCARD', active)
  if size > #jobs then redis.pcall('HSET', record, 'held', size) end
  local held = tonumber(redis.pcall('HGET', record, 'held')) or size
  local blame_job = blame and blame(held - 1)
  for _, job_id in ipairs(jobs) do
    returned = returned + give_back(job_id, id, reason, {dlq, dlq_ttl_s}, blame_job)
    seen_jobs = seen_jobs + 1
  end
  if redis.call('ZCARD', active) == 0 then forget_worker(id) end
end

-- How many workers were lost together, of a whole machine say. Their leases end within one renewal of each other: those
-- still to end have half a lease left at most, and those that have ended were reaped less than half a lease ago.
local function count_lost()
  local seen = sure('HMGET', guard, 'lost_ms', 'lost_workers')
  local ago_ms = now_ms - (tonumber(seen[1] or '') or 0)
  local before = ago_ms >= 0 and ago_ms < lease_ms / 2 and tonumber(seen[2] or '') or 0
  return before, before + redis.call('ZCOUNT', leases, '-inf', digits(now_ms + lease_ms / 2))
end

-- Blame for a worker of which nobody knows why it was lost.
local function blame_for_loss_of(id, lost_workers)
  return function(other_jobs)
    return blame_for_loss({at = iso(now_us), worker_id = id, other_jobs = other_jobs,
      other_workers = math.max(0, lost_workers - 1)})
  end
end

-- Whether somebody who knew the reason has said that this lease would end, or the pod was to claim no more.
local function is_end_explained(id)
  local seen = redis.pcall('HMGET', prefix .. 'workers:info:' .. id, 'announced_end', 'pod_uid')
  if seen.err then return false end
  return seen[1] == redis.call('ZSCORE', leases, id)
    or (seen[2] and seen[2] ~= '' and redis.call('EXISTS', prefix .. 'drain:' .. seen[2]) == 1)
end

local function answer(more, put_off_ms)
  let_others_in()
  if returned > 0 then
    count(counters, 'reaped', returned)
    count_ended('reaped', returned)
  end
  if buried > 0 then
    count(counters, 'dead', buried)
    count_ended('dead', buried)
  end
  return {returned, buried, reaped, more, put_off_ms}
end

if certified then
  local known = redis.pcall('HGET', prefix .. 'workers:info:' .. certified, 'incarnation')
  if known ~= incarnation then return answer(0, -1) end
  local blame
  if cause == 'unknown' then
    local _, lost_workers = count_lost()
    blame = blame_for_loss_of(certified, lost_workers)
  elseif cause ~= '' then blame = blame_for_crash end
  reap(certified, 'Worker ' .. certified .. ' died while running this job. Re-queued.', blame)
  return answer(redis.call('ZCARD', prefix .. 'active:jobs:' .. certified) > 0 and 1 or 0, -1)
end

local state = read_guard(guard, lease_ms)
sure('ZREM', leases, '')
restore_leases(leases, active_workers, state.lease_ms)
wait_out_silence(guard, state, state.lease_ms)
redis.call('HSET', guard, 'last_sweep_ms', digits(now_ms))
if now_ms < state.reap_not_before_ms then return answer(0, state.reap_not_before_ms) end
local ended = redis.call('ZRANGEBYSCORE', leases, '-inf', now_ms, 'LIMIT', 0, 100)
local lost_before, lost_workers = 0, 0
if #ended > 0 then lost_before, lost_workers = count_lost() end
for _, id in ipairs(ended) do
  if seen_jobs >= most then break end
  local blame = not is_end_explained(id) and blame_for_loss_of(id, lost_workers)
  reap(id, 'Worker ' .. id .. ' stopped renewing its lease while running this job. Re-queued.', blame)
end
if reaped > 0 then redis.call('HSET', guard, 'lost_ms', digits(now_ms), 'lost_workers', lost_before + reaped) end
local rest = redis.call('ZRANGEBYSCORE', leases, '-inf', now_ms, 'LIMIT', 0, 1)
return answer(#rest, -1)
