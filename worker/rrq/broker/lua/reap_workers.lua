-- reap_workers: give back the jobs of workers that are gone.
-- needs: context, wake, flow, enqueue, batch, settle, suspects, blame, give_back, awaited, guard, minute, statistics
-- Called with no name it sweeps for leases that have ended. Called with a name it is a death
-- certificate: proof (a wait status, a terminated container) that this incarnation runs no more.
-- Proof is exempt from the outage guard, which only protects workers that may still be alive.
-- KEYS     1 leases   2 guard   3 active workers   4 counters
-- ARGV     1 key prefix   2 lease (ms), where no worker has announced another   3 most jobs to give back in this call
--          4 dead letter list   5 dead letter TTL (s)   6 crash limit   7 lost limit
--          with a certificate: 8 worker id   9 incarnation   10 cause as JSON, '' = known, and not a crash,
--          'unknown' = the process is dead, and its cause is not known
-- Returns  {jobs given back, jobs buried, workers reaped, more to do 0/1, put off until ms or -1}
local leases, guard, active_workers, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lease_ms, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local certified, incarnation, cause = ARGV[8], ARGV[9], ARGV[10]
local returned, reaped, seen_jobs = 0, 0, 0

local function forget_worker(id)
  call_or_repair('ZREM', leases, id)
  redis.pcall('ZREM', active_workers, id)
  redis.call('DEL', prefix .. 'workers:info:' .. id, prefix .. 'health:worker:' .. id,
    prefix .. 'cancel:' .. id, prefix .. 'control:' .. id)
  await_no_more(id)
  reaped = reaped + 1
end

-- The settings of the worker itself, as it announced them when it registered; those of the caller where it did not.
local function read_rules(id)
  local own = redis.pcall('HMGET', prefix .. 'workers:info:' .. id, 'dlq', 'dlq_ttl_s', 'crash_limit', 'lost_limit', 'pod_uid')
  if own.err then own = {} end
  return {dlq = own[1] or ARGV[4], dlq_ttl_s = tonumber(own[2] or '') or tonumber(ARGV[5]),
    crash_limit = tonumber(own[3] or '') or tonumber(ARGV[6]), lost_limit = tonumber(own[4] or '') or tonumber(ARGV[7]),
    pod_uid = own[5] or ''}
end

-- `blame_for` takes how many other jobs the worker held and the rules, and returns what is asked of each job before it is
-- given back; nil when no job is to blame.
local function reap(id, reason, blame_for)
  local rules = read_rules(id)
  local active = prefix .. 'active:jobs:' .. id
  local jobs = call_or_repair('ZRANGE', active, 0, most - seen_jobs - 1)
  -- Very many jobs are given back in portions; the last one of them was not alone.
  local record, size = prefix .. 'workers:info:' .. id, redis.call('ZCARD', active)
  if size > #jobs then redis.pcall('HSET', record, 'held', size) end
  local in_hand = tonumber(redis.pcall('HGET', record, 'held')) or size
  local blame_job = blame_for and blame_for(in_hand - 1, rules)
  for _, job_id in ipairs(jobs) do
    returned = returned + give_back(job_id, id, reason, {rules.dlq, rules.dlq_ttl_s}, blame_job)
    seen_jobs = seen_jobs + 1
  end
  if redis.call('ZCARD', active) == 0 then forget_worker(id) end
end

-- How many workers were lost together, of a whole machine say. Their leases end within one renewal of each other: those
-- still to end have half a lease left at most, and those that have ended were reaped less than half a lease ago.
local function count_lost()
  local seen = call_or_repair('HMGET', guard, 'lost_ms', 'lost_workers')
  local ago_ms = now_ms - (tonumber(seen[1] or '') or 0)
  local before = ago_ms >= 0 and ago_ms < lease_ms / 2 and tonumber(seen[2] or '') or 0
  return before, before + redis.call('ZCOUNT', leases, '-inf', digits(now_ms + lease_ms / 2))
end

local function blame_for_loss_of(id, lost_workers)
  return function(other_jobs, rules)
    return blame().for_loss(id, math.max(0, lost_workers - 1), other_jobs, rules)
  end
end

local function blame_for_crash(other_jobs, rules) return blame().for_crash(cause, other_jobs, rules) end

local function answer(more, put_off_ms)
  local buried = blame().buried()
  unblock_others()
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
  local blame_for
  if cause == 'unknown' then
    local _, lost_workers = count_lost()
    blame_for = blame_for_loss_of(certified, lost_workers)
  elseif cause ~= '' then blame_for = blame_for_crash end
  reap(certified, 'Worker ' .. certified .. ' died while running this job. Re-queued.', blame_for)
  return answer(redis.call('ZCARD', prefix .. 'active:jobs:' .. certified) > 0 and 1 or 0, -1)
end

local state = read_guard(guard, lease_ms)
call_or_repair('ZREM', leases, '')
restore_leases(leases, active_workers, state.lease_ms)
wait_out_silence(guard, state, state.lease_ms)
redis.call('HSET', guard, 'last_sweep_ms', digits(now_ms))
if now_ms < state.reap_not_before_ms then return answer(0, state.reap_not_before_ms) end
local ended = redis.call('ZRANGEBYSCORE', leases, '-inf', now_ms, 'LIMIT', 0, 100)
local lost_before, lost_workers = 0, 0
if #ended > 0 then lost_before, lost_workers = count_lost() end
for _, id in ipairs(ended) do
  if seen_jobs >= most then break end
  local is_explained = blame().is_end_explained(id, redis.call('ZSCORE', leases, id))
  local blame_for = not is_explained and blame_for_loss_of(id, lost_workers) or nil
  reap(id, 'Worker ' .. id .. ' stopped renewing its lease while running this job. Re-queued.', blame_for)
end
if reaped > 0 then redis.call('HSET', guard, 'lost_ms', digits(now_ms), 'lost_workers', lost_before + reaped) end
local rest = redis.call('ZRANGEBYSCORE', leases, '-inf', now_ms, 'LIMIT', 0, 1)
return answer(#rest, -1)
