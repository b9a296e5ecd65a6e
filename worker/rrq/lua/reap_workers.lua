-- reap_workers: give back the jobs of workers that are gone.
-- needs: context, wake, flow, enqueue, batch, settle, give_back, awaited, guard, minute, statistics
-- Called with no name it sweeps for leases that have ended. Called with a name it is a death
-- certificate: proof (a wait status, a terminated container) that this incarnation runs no more.
-- Proof is exempt from the outage guard, which only protects workers that may still be alive.
-- KEYS     1 leases   2 guard   3 active workers   4 counters
-- ARGV     1 key prefix   2 lease (ms), where no worker has announced another   3 most jobs to give back in this call
--          4 dead letter list   5 dead letter TTL (s)   6 crash limit
--          with a certificate: 7 worker id   8 incarnation   9 cause as JSON, '' = not a crash
-- Returns  {jobs given back, jobs buried, workers reaped, more to do 0/1, put off until ms or -1}
local leases, guard, active_workers, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lease_ms, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local dlq, dlq_ttl_s, crash_limit = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local certified, incarnation, cause = ARGV[7], ARGV[8], ARGV[9]
local returned, buried, reaped, seen_jobs = 0, 0, 0, 0

-- The causes of the last ten crashes as JSON. What a foreign hand has written there, and what cannot be written
-- again, a number beyond all numbers say, is left out: the job must come back to its queue in any case.
local function add_to_history(history)
  local is_readable, entries = pcall(cjson.decode, history and #history < 65536 and history or '[]')
  if not is_readable or type(entries) ~= 'table' then entries = {} end
  local last = cjson.decode(cause)
  entries[#entries + 1] = last
  while #entries > 10 do table.remove(entries, 1) end
  local is_writable, text = pcall(cjson.encode, entries)
  return is_writable and text or cjson.encode({last})
end

-- Fair blame. Whatever was in hand in a crash becomes a suspect and reruns freely; only a crash
-- while running alone counts. Without a cause (lease end, drain, lost node) nobody is suspected.
local function blame_for(was_alone)
  if not cause or cause == '' then return nil end
  return function(job, id, fields)
    redis.call('HSET', job, 'suspect', '1', 'crash_history', add_to_history(redis.call('HGET', job, 'crash_history')))
    if not was_alone then return false end
    local crashes = redis.pcall('HINCRBY', job, 'crashes', 1)
    if type(crashes) == 'table' then
      -- A count that is no number, which only a foreign hand can have written, starts anew.
      redis.call('HSET', job, 'crashes', '1')
      crashes = 1
    end
    if crashes < crash_limit then return false end
    settle().bury(id, dlq, 'The job ended its worker process ' .. crash_limit
      .. ' times while running alone; last: ' .. cause, dlq_ttl_s, fields[8], fields[10])
    buried = buried + 1
    return true
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

local function reap(id, reason)
  local active = prefix .. 'active:jobs:' .. id
  local jobs = sure('ZRANGE', active, 0, most - seen_jobs - 1)
  -- Very many jobs are given back in portions; the last one of them was not alone.
  local record, size = prefix .. 'workers:info:' .. id, redis.call('ZCARD', active)
  if size > #jobs then redis.pcall('HSET', record, 'in_portions', '1') end
  local blame = blame_for(size == 1 and redis.pcall('HGET', record, 'in_portions') ~= '1')
  for _, job_id in ipairs(jobs) do
    returned = returned + give_back(job_id, id, reason, {dlq, dlq_ttl_s}, blame)
    seen_jobs = seen_jobs + 1
  end
  if redis.call('ZCARD', active) == 0 then forget_worker(id) end
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
  reap(certified, 'Worker ' .. certified .. ' died while running this job. Re-queued.')
  return answer(redis.call('ZCARD', prefix .. 'active:jobs:' .. certified) > 0 and 1 or 0, -1)
end

local state = read_guard(guard, lease_ms)
sure('ZREM', leases, '')
restore_leases(leases, active_workers, state.lease_ms)
wait_out_silence(guard, state, state.lease_ms)
redis.call('HSET', guard, 'last_sweep_ms', digits(now_ms))
if now_ms < state.reap_not_before_ms then return answer(0, state.reap_not_before_ms) end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now_ms, 'LIMIT', 0, 100)) do
  if seen_jobs >= most then break end
  reap(id, 'Worker ' .. id .. ' stopped renewing its lease while running this job. Re-queued.')
end
local rest = redis.call('ZRANGEBYSCORE', leases, '-inf', now_ms, 'LIMIT', 0, 1)
return answer(#rest, -1)
