-- reconcile_worker: make Redis and a worker agree on what the worker holds.
-- needs: context, wake, flow, enqueue, batch, settle, give_back, awaited
-- A claim whose reply was cut leaves jobs that no worker runs; a restart of Redis may forget a claim
-- that is being run, or a finish that was acknowledged. The worker's list is the truth about what
-- runs; the tokens are the truth about whose it is.
-- KEYS     1 leases   2 active set of the worker   3 worker record
-- ARGV     1 key prefix   2 worker id   3 incarnation   4 default job timeout (s)   5 lock extension (s)
--          6 dead letter list   7 dead letter TTL (s)   then per attempt: id, token, token before the claim, queue, due
--          score; attempts at one job in the order in which they were made
-- Returns  {code, jobs given back, claims set up again, positions of attempts no longer owned…}
--          code: 1 reconciled   0 lease lost, nothing done
local leases, active, record = KEYS[1], KEYS[2], KEYS[3]
local worker_id, incarnation = ARGV[2], ARGV[3]
local default_timeout_s, extension_s = tonumber(ARGV[4]), tonumber(ARGV[5])
local letters = {ARGV[6], tonumber(ARGV[7])}
local FIRST, FIELDS_PER_ATTEMPT = 7, 5
if not call_or_repair('ZSCORE', leases, worker_id)
  or redis.pcall('HGET', record, 'incarnation') ~= incarnation then return {0, 0, 0} end

call_or_repair('ZREM', active, '')

local is_limited

-- Redis went back to before the claim: the job is still queued where and when it was, or still or again blocked; its
-- token is as it was then, and no worker has the lock. An id that 0.7 enqueued anew has no token either, but
-- another due time: it must run, not get the outcome of its earlier life.
local function claim_again(id, token, token_before, queue, score)
  local job, place = prefix .. 'job:' .. id, queue
  local seen = redis.call('HMGET', job, 'attempt_token', 'job_timeout_seconds', 'function_name', 'parked_in',
    'claimed_queue')
  local queued = redis.pcall('ZSCORE', queue, id)
  if type(queued) ~= 'string' and seen[4] and seen[5] == queue then
    place = prefix .. 'parked:' .. seen[4]
    queued = redis.pcall('ZSCORE', place, id)
  end
  if (seen[1] or '') ~= token_before or type(queued) ~= 'string' or tonumber(queued) ~= tonumber(score) then
    return false
  end
  local lock_ttl_ms = lock_ttl_ms_of(seen[2], default_timeout_s, extension_s)
  if not redis.call('SET', prefix .. 'lock:job:' .. id, worker_id, 'NX', 'PX', lock_ttl_ms) then
    return false
  end
  redis.call('ZREM', place, id)
  if place ~= queue then redis.call('HDEL', job, 'parked_in') end
  redis.call('HSET', job, 'status', 'ACTIVE', 'start_time', iso(now_us), 'worker_id', worker_id,
    'attempt_token', token, 'claimed_queue', queue, 'claimed_score', score)
  redis.call('PERSIST', job)
  redis.call('ZADD', active, math.floor(now_us / 1000000), id)
  -- It runs, whether or not a slot is free.
  if is_limited == nil then is_limited = is_controlled() end
  if is_limited then
    local slots = flow().occupy(id, flow().scopes_of(job, seen[3] or ''), flow().enter_queue(queue, token))
    if slots then
      redis.call('HSET', job, 'slots', slots, 'extras', flow().with_slots(redis.call('HGET', job, 'extras')))
    end
    flow().note_slots()
  end
  return true
end

-- Redis went back to the attempt before this one, which was to be tried again and is this worker's as well. If Redis
-- learned only of its end, the job would run once more, although this attempt was made and perhaps ended, too.
local function go_on(id, token, queue, score)
  local job = prefix .. 'job:' .. id
  settle().note_attempt(job, 'retry', 'Redis forgot how this attempt had ended, and that another followed it.')
  settle().count_attempt(job)
  redis.call('HDEL', job, 'boost_ms')
  redis.call('HSET', job, 'attempt_token', token, 'start_time', iso(now_us), 'claimed_queue', queue, 'claimed_score', score)
end

-- Another program may have deleted the active set; when this worker dies, only what is in it comes back.
local function note_in_hand(id)
  local seen = redis.call('HMGET', prefix .. 'job:' .. id, 'status', 'worker_id')
  local is_ours = seen[1] == 'ACTIVE' and seen[2] == worker_id
  if is_ours then redis.call('ZADD', active, 'NX', math.floor(now_us / 1000000), id) end
  return is_ours
end

local known, lost, given_back, set_up = {}, {}, 0, 0
-- The token of the attempt that has each job now, as far as it is this worker's.
local in_hand = {}
for at = FIRST, #ARGV - 1, FIELDS_PER_ATTEMPT do
  local id, token = ARGV[at + 1], ARGV[at + 2]
  local current = redis.pcall('HGET', prefix .. 'job:' .. id, 'attempt_token')
  if current == token or current == token .. OVER then
    known[id] = true
    if current == token and note_in_hand(id) then in_hand[id] = token end
  elseif in_hand[id] and ARGV[at + 3] == in_hand[id] .. OVER then
    go_on(id, token, ARGV[at + 4], ARGV[at + 5])
    in_hand[id] = token
    set_up = set_up + 1
  elseif type(current) ~= 'table'
    and claim_again(id, token, ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]) then
    known[id] = true
    in_hand[id] = token
    set_up = set_up + 1
  else
    lost[#lost + 1] = (at - FIRST) / FIELDS_PER_ATTEMPT + 1
  end
end
for _, id in ipairs(redis.call('ZRANGE', active, 0, -1)) do
  if not known[id] then
    given_back = given_back
      + give_back(id, worker_id, 'Claimed, but the answer never reached the worker. Re-queued.', letters)
  end
end
unblock_others()
await_no_more(worker_id)
return {1, given_back, set_up, unpack(lost)}
