-- suspects: of all the processes of a pod only one at a time runs a suspect.
-- needs: context
-- A job may end its whole pod, and then all that ran there looks the same. If two suspects ran side by side, the end of the
-- pod would count against both, and one of them is innocent. So each pod has one place for suspects. Its key names the
-- attempt that took it, and counts only while that attempt runs: no worker has to give the place back.
local function place_of(pod_uid) return prefix .. 'suspect:' .. pod_uid end

local function name_attempt(id, token) return token .. ' ' .. id end

-- The attempt that took the place of a pod last; nil where the key holds something else.
local function last_attempt(pod_uid)
  local attempt = redis.pcall('HGET', place_of(pod_uid), 'attempt')
  return type(attempt) == 'string' and attempt or nil
end

-- Whether another process of the pod runs a suspect. A worker that is in no pod has no process beside it.
local function is_place_taken(pod_uid, worker_id)
  local token, id = string.match(pod_uid ~= '' and last_attempt(pod_uid) or '', '^(%S+) (.+)$')
  if not id then return false end
  local seen = redis.pcall('HMGET', prefix .. 'job:' .. id, 'status', 'attempt_token', 'worker_id')
  return seen[1] == 'ACTIVE' and seen[2] == token and seen[3] ~= worker_id
end

local function take_place(pod_uid, id, token, ttl_ms)
  if pod_uid == '' then return end
  local place = place_of(pod_uid)
  redis.call('DEL', place)
  redis.call('HSET', place, 'attempt', name_attempt(id, token))
  redis.call('PEXPIRE', place, ttl_ms)
end

-- Whether this attempt had the place of its pod.
local function had_place(pod_uid, id, token)
  return pod_uid == '' or last_attempt(pod_uid) == name_attempt(id, token)
end

-- The processes of a pod are reaped one by one. Who loses other jobs before the suspect of the pod is lost was its company.
local function note_company(pod_uid, worker_id)
  if is_place_taken(pod_uid, worker_id) then redis.call('HSET', place_of(pod_uid), 'company', 1) end
end

-- Whether other processes of the pod had jobs in hand when the suspect was lost, which this worker held.
local function had_company(pod_uid, worker_id)
  if pod_uid == '' then return false end
  if redis.call('HGET', place_of(pod_uid), 'company') then return true end
  for _, other in ipairs(redis.call('ZRANGE', prefix .. 'workers:lease', 0, -1)) do
    if other ~= worker_id and redis.pcall('HGET', prefix .. 'workers:info:' .. other, 'pod_uid') == pod_uid
      and call_or_repair('ZCARD', prefix .. 'active:jobs:' .. other) > 0 then return true end
  end
  return false
end

return {is_place_taken = is_place_taken, take_place = take_place, had_place = had_place, note_company = note_company,
  had_company = had_company}
