-- observe_queues: what operators and views need to know, in one read-only call.
-- needs: context, wake, flow
-- KEYS     1 leases   then the queues
-- ARGV     1 key prefix   2 most workers to list   then per queue: horizon (ms), how far ahead "soon" reaches
-- Returns  {now ms, queues, workers, anything paused, limited or parked 0/1, what is paused, how many leases have ended,
--          more of them or of their jobs than were looked at 0/1}
--          queue:  {} when its key holds something else, else {due, due within the horizon, later, oldest due ms or -1,
--                  next due ms or -1, how many of those due may not start now, how many are orphaned}
--          worker: {id, pod uid, busy, capacity, draining 0/1, queues (JSON), lease ends (ms),
--                   incarnation, registered at (ms) or -1, attempts ended}
--          Leases that have ended and orphaned jobs are counted up to a bound: those beyond it are seen after a sweep.
local leases, most_workers = KEYS[1], tonumber(ARGV[2])
local MAX_MS = 2 ^ 52

-- Scores reach from -inf to +inf, and another program may write any text; an integer reply does not take it all.
local function whole(text, default)
  local number = tonumber(text or '')
  if not number or number ~= number then return default end
  return math.floor(math.max(0, math.min(number, MAX_MS)))
end

local function score_ms(entry) return whole(entry[2], -1) end

local has_control = is_controlled()

-- What a pause or a limit of the queue keeps from starting; jobs that a limit of their function keeps are parked.
local function count_blocked(queue, due)
  local name = short_name(queue)
  if flow().is_paused('queue:' .. name) then return due end
  local limit, room = flow().limit_of('queue:' .. name), due
  if not limit then return 0 end
  if flow().positive(limit.concurrency) then
    room = math.min(room, flow().positive(limit.concurrency) - (tonumber(redis.pcall('SCARD', prefix .. 'slots:q:' .. name)) or 0))
  end
  if flow().positive(limit.rate) then room = math.min(room, (flow().rate_room('q:' .. name, limit))) end
  return due - math.max(0, math.min(room, due))
end

-- A head start by priority makes a job look older than it is. Those are in front, so a few say enough.
local function oldest_due_ms(queue)
  local first = redis.call('ZRANGE', queue, 0, 49, 'WITHSCORES')
  local oldest_ms = MAX_MS
  for i = 1, #first, 2 do
    local boost_ms = redis.pcall('HGET', prefix .. 'job:' .. first[i], 'boost_ms')
    local score = whole(first[i + 1], -1)
    if type(boost_ms) ~= 'string' then return math.min(oldest_ms, score) end
    oldest_ms = math.min(oldest_ms, score + whole(boost_ms, 0), now_ms)
  end
  return oldest_ms
end

-- A job is orphaned when the lease of its worker has ended: it is in no queue, and no worker runs it before a sweep
-- gives it back. The job itself says where it belongs, as the record of its worker may be gone.
local MOST_ENDED, MOST_ORPHANS = 100, 500
local ended = redis.call('ZRANGEBYSCORE', leases, '-inf', digits(now_ms), 'LIMIT', 0, MOST_ENDED)
local orphaned = {}
local function count_orphans(id, most)
  local in_hand = redis.pcall('ZRANGE', prefix .. 'active:jobs:' .. id, 0, most - 1)
  if in_hand.err then return 0 end
  for _, job_id in ipairs(in_hand) do
    local job = redis.pcall('HMGET', prefix .. 'job:' .. job_id, 'worker_id', 'status', 'claimed_queue', 'queue_name')
    local has_ended = job[2] == 'COMPLETED' or job[2] == 'FAILED' or job[2] == 'CANCELLED'
    if job[1] == id and not has_ended then
      local queue = home_queue(job[3], job[4])
      orphaned[queue] = (orphaned[queue] or 0) + 1
    end
  end
  return #in_hand
end

local looked_at = 0
for _, id in ipairs(#KEYS > 1 and ended or {}) do
  if looked_at >= MOST_ORPHANS then break end
  looked_at = looked_at + count_orphans(id, MOST_ORPHANS - looked_at)
end

local queues, workers = {}, {}
local function observe_queue(queue, horizon_ms)
  local kind = redis.call('TYPE', queue).ok
  if kind ~= 'zset' and kind ~= 'none' then return {} end
  local now = digits(now_ms)
  local due = redis.call('ZCOUNT', queue, '-inf', now)
  local soon = redis.call('ZCOUNT', queue, '(' .. now, digits(now_ms + horizon_ms))
  local total = redis.call('ZCARD', queue)
  local oldest_ms = due > 0 and oldest_due_ms(queue) or -1
  local next_ms = score_ms(redis.call('ZRANGEBYSCORE', queue, '(' .. now, '+inf', 'WITHSCORES',
    'LIMIT', 0, 1))
  return {due, soon, total - due - soon, oldest_ms, next_ms, has_control and count_blocked(queue, due) or 0,
    orphaned[queue] or 0}
end

for q = 2, #KEYS do queues[#queues + 1] = observe_queue(KEYS[q], tonumber(ARGV[q + 1])) end
local living = redis.call('ZRANGEBYSCORE', leases, '(' .. digits(now_ms), '+inf', 'WITHSCORES',
  'LIMIT', 0, most_workers)
for i = 1, #living, 2 do
  local id = living[i]
  local record = redis.pcall('HMGET', prefix .. 'workers:info:' .. id, 'pod_uid', 'capacity', 'queues',
    'incarnation', 'registered_ms', 'ended')
  if record.err then record = {} end
  local pod_uid = record[1] or ''
  local draining = pod_uid ~= '' and redis.call('EXISTS', prefix .. 'drain:' .. pod_uid) or 0
  local capacity = whole(record[2], 0)
  local busy = redis.pcall('ZCARD', prefix .. 'active:jobs:' .. id)
  -- Unknown is not zero: no reader may take the worker for idle until its next beat has put that key right.
  if type(busy) == 'table' then busy = capacity end
  workers[#workers + 1] = {id, pod_uid, busy, capacity, draining, record[3] or '[]', whole(living[i + 1], 0),
    record[4] or '', whole(record[5], -1), whole(record[6], 0)}
end
return {now_ms, queues, workers, has_control and 1 or 0, has_control and flow().paused_targets() or {}, #ended,
  (#ended >= MOST_ENDED or looked_at >= MOST_ORPHANS) and 1 or 0}
