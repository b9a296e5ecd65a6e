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

-- Scores reach from -inf to +inf; an integer reply does not.
local function score_ms(entry)
  local score = tonumber(entry[2] or '')
  return score and math.floor(math.max(0, math.min(score, MAX_MS))) or -1
end

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
  workers[#workers + 1] = {id, pod_uid, redis.call('ZCARD', prefix .. 'active:jobs:' .. id),
    tonumber(record[2] or '') or 0, draining, record[3] or '[]', math.floor(tonumber(living[i + 1])),
    record[4] or '', tonumber(record[5] or '') or -1, tonumber(record[6] or '') or 0}
end
return {now_ms, queues, workers}
