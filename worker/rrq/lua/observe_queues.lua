-- observe_queues: what operators and views need to know, in one read-only call.
-- needs: context
-- KEYS     1 leases   then the queues
-- ARGV     1 key prefix   2 most workers to list   then per queue: horizon (ms), how far ahead "soon" reaches
-- Returns  {now ms, queues, workers}
--          queue:  {} when its key holds something else, else {due, due within the horizon, later, oldest due ms or -1, next due ms or -1}
--          worker: {id, pod uid, busy, capacity, draining 0/1, queues (JSON), lease ends (ms),
--                   incarnation, registered at (ms) or -1, attempts ended}
local leases, most_workers = KEYS[1], tonumber(ARGV[2])
local MAX_MS = 2 ^ 52

-- Scores reach from -inf to +inf, and a foreign hand writes what it likes; an integer reply does not take it all.
local function whole(text, default)
  local number = tonumber(text or '')
  if not number or number ~= number then return default end
  return math.floor(math.max(0, math.min(number, MAX_MS)))
end

local function score_ms(entry) return whole(entry[2], -1) end

local queues, workers = {}, {}
local function observe_queue(queue, horizon_ms)
  local kind = redis.call('TYPE', queue).ok
  if kind ~= 'zset' and kind ~= 'none' then return {} end
  local now = digits(now_ms)
  local due = redis.call('ZCOUNT', queue, '-inf', now)
  local soon = redis.call('ZCOUNT', queue, '(' .. now, digits(now_ms + horizon_ms))
  local total = redis.call('ZCARD', queue)
  local oldest_ms = due > 0 and score_ms(redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')) or -1
  local next_ms = score_ms(redis.call('ZRANGEBYSCORE', queue, '(' .. now, '+inf', 'WITHSCORES',
    'LIMIT', 0, 1))
  return {due, soon, total - due - soon, oldest_ms, next_ms}
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
  -- Unknown is not zero: nobody may take the worker for idle until its next beat has put that key right.
  if type(busy) == 'table' then busy = capacity end
  workers[#workers + 1] = {id, pod_uid, busy, capacity, draining, record[3] or '[]', whole(living[i + 1], 0),
    record[4] or '', whole(record[5], -1), whole(record[6], 0)}
end
return {now_ms, queues, workers}
