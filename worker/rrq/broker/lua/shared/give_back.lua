-- give_back: return the jobs of a worker to where they came from.
-- needs: context, wake, flow, enqueue, batch, settle

-- Slots that became free in this call; the caller unblocks others when all jobs that end in it have done so.
local has_freed = false
local function give_up_slots(id, job, slots)
  flow().free_up(id, job, slots)
  has_freed = true
end

local function unblock_others()
  if has_freed then flow().unblock_others() end
end

-- Drop the lock if this worker holds it. Returns false when another worker does.
local function unlock(id, worker_id)
  local lock = prefix .. 'lock:job:' .. id
  local holder = redis.pcall('GET', lock)
  -- A lock that is no text names no worker.
  local is_free = type(holder) ~= 'string' or holder == worker_id
  if holder and is_free then redis.call('DEL', lock) end
  return is_free
end

-- Put one job of a worker back at its original due score, uncounted, and fence the attempt that had
-- it. `letters` is the dead letter list and its TTL in seconds, for a job whose queue key holds something
-- else. `instead` is nil, or a function (job key, id, fields) that may do something else with the job, bury it say, and then
-- returns true. Returns 1 when the job is due again, 0 when it was not this worker's any more. The caller
-- lets other workers claim when all are given back. With `is_untold` the attempt is not added to the history of the job.
local function give_back(id, worker_id, reason, letters, instead, is_untold)
  local job = prefix .. 'job:' .. id
  call_or_repair('ZREM', prefix .. 'active:jobs:' .. worker_id, id)
  local seen = redis.pcall('HMGET', job, 'status', 'worker_id', 'attempt_token', 'claimed_queue',
    'claimed_score', 'queue_name', 'cancel_requested', 'job_unique_key', 'result_ttl_seconds',
    'waited_for', 'slots')
  if seen.err then return 0 end
  local status, owner = seen[1], seen[2]
  if not unlock(id, worker_id) or owner ~= worker_id then return 0 end
  if status == 'COMPLETED' or status == 'FAILED' or status == 'CANCELLED' then return 0 end
  local queue = home_queue(seen[4], seen[6])
  if not is_untold then settle().note_attempt(job, 'back', reason) end
  if seen[11] then give_up_slots(id, job, seen[11]) end
  -- Seen before the job is touched: adding to it would stop the script half-way, with the job in no queue
  -- and in no active set.
  local kind = redis.call('TYPE', queue).ok
  if kind ~= 'zset' and kind ~= 'none' then
    settle().bury(id, letters[1], queue .. ' holds a ' .. kind .. ', not a queue, so the job could not be given back: '
      .. reason, letters[2], seen[8], seen[10])
    redis.call('HSET', job, 'attempt_token', (seen[3] or '') .. '.back')
    return 0
  end
  -- That entry stands.
  if status ~= 'ACTIVE' and flow().is_queued_again(id, job, queue) then return 0 end
  redis.call('HSET', job, 'attempt_token', (seen[3] or '') .. '.back')
  redis.call('HDEL', job, 'worker_id', 'start_time', 'claimed_score')
  if seen[7] then
    settle().mark_cancelled(id, tonumber(seen[9]) or 86400, seen[8], seen[10])
    return 0
  end
  if instead and instead(job, id, seen) then return 0 end
  -- It ran, so its worker had its function.
  redis.call('HDEL', job, 'unknown_since_ms')
  redis.call('HSET', job, 'status', 'PENDING', 'next_scheduled_run_time', iso(now_us))
  settle().write_error(job, reason)
  redis.call('PERSIST', job)
  -- Refused when it is no number; by now the job is in no set, so it is due at once instead.
  if type(redis.pcall('ZADD', queue, 'NX', seen[5] or now_ms, id)) == 'table' then
    redis.call('ZADD', queue, 'NX', now_ms, id)
  end
  wake(queue, 1)
  return 1
end
