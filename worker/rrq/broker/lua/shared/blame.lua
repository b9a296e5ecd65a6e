-- blame: hold the end of a worker against the jobs that it had in hand.
-- needs: context, settle, suspects
-- `rules` are the dead letter list, its TTL in seconds, the crash limit, the lost limit and the uid of the pod. Each function
-- returns what give_back calls for a job: it returns true when it has dead-lettered the job.
local buried = 0

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

local function bury(id, fields, reason, rules)
  settle().bury(id, rules.dlq, reason, rules.dlq_ttl_s, fields[8], fields[10])
  buried = buried + 1
  return true
end

-- Fair blame. Whatever was in hand in a crash becomes a suspect and reruns freely; only a crash
-- while running alone counts.
local function for_crash(cause, other_jobs, rules)
  return function(job, id, fields)
    local was_suspect = redis.call('HGET', job, 'suspect')
    local was_alone = other_jobs == 0 and (not was_suspect or suspects().had_place(rules.pod_uid, id, fields[3]))
    redis.call('HSET', job, 'suspect', '1')
    add_to_history(job, 'crash_history', cjson.decode(cause))
    if not was_alone or count_up(job, 'crashes') < rules.crash_limit then return false end
    return bury(id, fields, 'The job ended its worker process ' .. rules.crash_limit
      .. ' times while running alone; last: ' .. cause, rules)
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
-- suspect, and is buried only when it loses one more worker while running alone. What runs in other processes of its pod may
-- be the one to blame. But each loss counts against that as well, and makes it a suspect after as many losses: then the two
-- no longer run in one pod.
local function for_loss(worker_id, other_workers, other_jobs, rules)
  local loss = {at = iso(now_us), worker_id = worker_id, other_jobs = other_jobs, other_workers = other_workers}
  local pod_uid, limit = rules.pod_uid, rules.lost_limit
  return function(job, id, fields)
    settle().forget_troubles_of_earlier_life(job)
    local losses, history = count_up(job, 'losses'), add_to_history(job, 'loss_history', loss)
    local had_place = suspects().had_place(pod_uid, id, fields[3])
    if not had_place then suspects().note_company(pod_uid, worker_id) end
    if losses < limit then return false end
    redis.call('HSETNX', job, 'suspect', 'lost')
    if losses == limit or other_jobs > 0 or not had_place then return false end
    local had_company = suspects().had_company(pod_uid, worker_id)
    if had_company and losses <= 2 * limit then return false end
    return bury(id, fields, 'The worker was lost ' .. losses .. ' times while running this job, for no known reason; the '
      .. 'last time the job ran ' .. (had_company and 'as the only suspect of its pod' or 'alone') .. ' (worker_lost_limit is '
      .. limit .. '). It may need more memory than its container has.\n' .. list_losses(history), rules)
  end
end

-- Whether the reason of this end is known: it was announced, or the pod was to claim no more.
local function is_end_explained(id, lease_end)
  local seen = redis.pcall('HMGET', prefix .. 'workers:info:' .. id, 'announced_end', 'pod_uid')
  if seen.err then return false end
  return (lease_end and seen[1] == lease_end)
    or (seen[2] and seen[2] ~= '' and redis.call('EXISTS', prefix .. 'drain:' .. seen[2]) == 1)
end

return {for_crash = for_crash, for_loss = for_loss, is_end_explained = is_end_explained, buried = function() return buried end}
