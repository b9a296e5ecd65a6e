-- requeue_dead_letters: give dead-lettered jobs a fresh start, oldest first.
-- needs: context, wake
-- KEYS     1 dead letter list   2 queue
-- ARGV     1 key prefix   2 queue name to store   3 most jobs in this call   4… only these ids
-- Returns  {jobs queued, entries taken off the list}; ids whose job has expired are dropped
local dlq, queue, most = KEYS[1], KEYS[2], tonumber(ARGV[3])
local refusal = wrong_queue({queue})
if refusal then return refusal end
local kind = redis.call('TYPE', dlq).ok
if kind ~= 'list' and kind ~= 'none' then
  return redis.error_reply('RRQTYPE ' .. dlq .. ' holds a ' .. kind .. ', not a dead letter list')
end

local function queue_again(id)
  local job = prefix .. 'job:' .. id
  if redis.call('TYPE', job).ok ~= 'hash' then return 0 end
  local token, status, name, scope = unpack(redis.call('HMGET', job, 'attempt_token', 'status', 'queue_name', 'parked_in'))
  -- The id was enqueued again after it was dead-lettered; that life is none of ours.
  if status == 'ACTIVE' or status == 'COMPLETED' or status == 'CANCELLED' then return 0 end
  if type(redis.pcall('ZSCORE', home_queue(nil, name), id)) == 'string' then return 0 end
  if scope and type(redis.pcall('ZSCORE', prefix .. 'parked:' .. scope, id)) == 'string' then return 0 end
  redis.call('HSET', job, 'status', 'PENDING', 'current_retries', '0', 'queue_name', ARGV[2],
    'attempt_token', (token or '') .. '.requeued', 'next_scheduled_run_time', iso(now_us))
  redis.call('HDEL', job, 'completion_time', 'worker_id', 'start_time', 'claimed_queue',
    'claimed_score', 'cancel_requested', 'suspect', 'reserved_by', 'crashes', 'slots', 'parked_in', 'boost_ms',
    'losses', 'loss_history', 'unknown_since_ms')
  redis.call('PERSIST', job)
  redis.call('DEL', prefix .. 'events:job:' .. id)
  redis.call('ZADD', queue, now_ms, id)
  return 1
end

local queued, taken = 0, 0
if #ARGV > 3 then
  for i = 4, #ARGV do
    if redis.call('LREM', dlq, -1, ARGV[i]) == 1 then
      taken = taken + 1
      queued = queued + queue_again(ARGV[i])
    end
  end
else
  while queued < most and taken < most do
    local id = redis.call('RPOP', dlq)
    if not id then break end
    taken = taken + 1
    queued = queued + queue_again(id)
  end
end
if queued > 0 then
  wake(queue, queued)
  announce(queue)
end
return {queued, taken}
