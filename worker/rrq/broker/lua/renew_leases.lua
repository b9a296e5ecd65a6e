-- renew_leases: the heartbeat of one or many workers; its answer carries what they have to know.
-- needs: context, wake, flow, enqueue, batch, settle, suspects, blame, give_back, awaited, guard, minute, statistics
-- KEYS     1 leases   2 guard   3 active workers   4 active queues   5 monitor stream   6 counters
-- ARGV     1 key prefix   2 lease (ms)   3 renewal interval (ms)   4 dead letter list
--          5 dead letter TTL (s)   6 crash limit   7 lost limit   then per worker: id, incarnation, register 0/1, pod uid, capacity, health record (JSON),
--          health TTL (s), queues (JSON list), functions (JSON list, when it registers)
-- Returns  {now ms, when the next lease ends in ms or -1, then per worker {state, draining 0/1,
--          size of its active set, ids to cancel…}}
--          state: 1 alive   0 reaped (its lease ended and its jobs were given to others)
--                 2 the id belongs to another living process
local leases, guard = KEYS[1], KEYS[2]
local lease_ms, renewal_ms = tonumber(ARGV[2]), tonumber(ARGV[3])
local letters = {ARGV[4], tonumber(ARGV[5])}
local FIRST, FIELDS_PER_WORKER = 7, 9
local has_blamed = false

-- A restart or a fail-over may have forgotten claims, and those jobs would be given to others while they run. So
-- no worker claims what was due by then until each worker that had a lease has said what is in hand; for dead ones the
-- fleet waits no longer than this.
local function await_owners(last_beat_ms)
  local until_ms, owners = now_ms + 2 * renewal_ms, redis.call('ZRANGE', leases, 0, -1)
  redis.call('DEL', AWAITED)
  if #owners == 0 then return end
  for _, id in ipairs(owners) do redis.call('SADD', AWAITED, id) end
  redis.call('PEXPIRE', AWAITED, 2 * renewal_ms)
  redis.call('HSET', guard, 'claim_not_before_ms', until_ms, 'restarted_ms', digits(now_ms))
  -- By a clock that was set back, what is not due yet may have been, and be in hand.
  if last_beat_ms and last_beat_ms > now_ms then redis.call('HDEL', guard, 'restarted_ms') end
end

local state = read_guard(guard, lease_ms)
-- The first write is one that Redis allows when it is out of memory; the others may then follow.
call_or_repair('ZREM', leases, '')
follow_clock(guard, state, leases)
restore_leases(leases, KEYS[3], lease_ms)
-- INFO may be denied by an ACL; without it a restart still shows as a gap in the beats.
local info = redis.pcall('INFO', 'server')
local run_id = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or state.run_id
local has_restarted = state.run_id and run_id ~= state.run_id
-- The longer of both leases: the worker with the last heartbeat may have another one.
local put_off_ms = math.max(lease_ms, state.lease_ms)
if has_restarted then put_off_reaping(guard, state, put_off_ms) else wait_out_silence(guard, state, put_off_ms) end
-- Where the beats stopped while the fleet still waited, its time ran out with no worker there to say anything.
if has_restarted or beats_have_stopped(state)
  and state.claim_not_before_ms > (state.last_beat_ms or now_ms) then
  await_owners(state.last_beat_ms)
end
-- Another program must not keep the fleet from working for longer than the longest lease that a user would choose.
local latest_ms = now_ms + math.max(lease_ms, LONGEST_LEASE_MS)
if state.reap_not_before_ms > latest_ms then put_off_reaping(guard, state, put_off_ms) end
if state.claim_not_before_ms > latest_ms then redis.call('HDEL', guard, 'claim_not_before_ms') end
redis.call('HSET', guard, 'last_beat_ms', now_ms, 'lease_ms', lease_ms, 'run_id', run_id or '')

-- A new process under the id of a dead one first gives back what the dead one held. That one has ended for no known
-- reason: its container restarts it under the same id each time that a job kills it.
local function give_back_of_predecessor(id, lease_end)
  local jobs = call_or_repair('ZRANGE', prefix .. 'active:jobs:' .. id, 0, -1)
  local blame_job
  -- While reaping waits, Redis has been away, and the lease has ended because of that.
  local is_outage = now_ms < state.reap_not_before_ms
  if #jobs > 0 and not is_outage and not blame().is_end_explained(id, lease_end) then
    local rules = {dlq = letters[1], dlq_ttl_s = letters[2], lost_limit = tonumber(ARGV[7]),
      pod_uid = redis.call('HGET', prefix .. 'workers:info:' .. id, 'pod_uid') or ''}
    blame_job = blame().for_loss(id, 0, #jobs - 1, rules)
    has_blamed = true
  end
  for _, job_id in ipairs(jobs) do
    give_back(job_id, id, 'Worker ' .. id .. ' was replaced by a new process. Re-queued.', letters, blame_job)
  end
end

local function register(id, incarnation, record)
  local known = redis.pcall('HGET', record, 'incarnation')
  -- A record that is no hash says nothing about a worker, and must not keep one from registering.
  if type(known) == 'table' then
    redis.call('DEL', record)
    known = false
  end
  if known ~= incarnation then
    local lease_end = redis.call('ZSCORE', leases, id)
    if known and lease_end and tonumber(lease_end) > now_ms then return false end
    give_back_of_predecessor(id, lease_end)
    redis.call('HSET', record, 'registered_ms', now_ms, 'ended', 0)
  end
  return true
end

-- Ids that were to be cancelled and are still in hand; the rest have ended by themselves.
local function cancellations(id)
  local cancel, found = prefix .. 'cancel:' .. id, {}
  -- So many at a time: what is not in hand is taken out, and the rest is seen by the next beats.
  for _, job_id in ipairs(call_or_repair('SRANDMEMBER', cancel, 1000)) do
    if redis.call('ZSCORE', prefix .. 'active:jobs:' .. id, job_id) then found[#found + 1] = job_id
    else redis.call('SREM', cancel, job_id) end
  end
  return found
end

local function beat(at)
  local id, incarnation, is_new, pod_uid = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3] == '1', ARGV[at + 4]
  local record = prefix .. 'workers:info:' .. id
  if is_new then
    if not register(id, incarnation, record) then return {2, 0, 0} end
  -- Reaping takes the record too: where only the lease is gone, another program deleted it, and the worker gets one.
  elseif redis.pcall('HGET', record, 'incarnation') ~= incarnation then return {0, 0, 0} end
  redis.call('ZADD', leases, now_ms + lease_ms, id)
  local draining = pod_uid ~= '' and redis.call('EXISTS', prefix .. 'drain:' .. pod_uid) or 0
  redis.call('HSET', record, 'incarnation', incarnation, 'pod_uid', pod_uid,
    'capacity', ARGV[at + 5], 'queues', ARGV[at + 8])
  if is_new then
    -- Who reaps this worker need not have its settings: an operator has none of any application.
    redis.call('HSET', record, 'functions', ARGV[at + 9], 'dlq', ARGV[4], 'dlq_ttl_s', ARGV[5], 'crash_limit', ARGV[6], 'lost_limit', ARGV[7])
  end
  redis.call('HDEL', record, 'held')
  redis.call('PEXPIRE', record, lease_ms * 20)
  redis.call('SET', prefix .. 'health:worker:' .. id, ARGV[at + 6], 'EX', ARGV[at + 7])
  -- The books below are for onlookers; whatever spoilt them must not stop a heartbeat.
  pcall_or_repair('ZADD', KEYS[3], now_us / 1000000, id)
  for _, queue in ipairs(cjson.decode(ARGV[at + 8])) do
    pcall_or_repair('ZADD', KEYS[4], now_us / 1000000, queue)
  end
  pcall_or_repair('XADD', KEYS[5], 'MAXLEN', '~', 1000, '*', 'event_type', 'worker_heartbeat',
    'timestamp', string.format('%.6f', now_us / 1000000), 'worker_id', id)
  -- The worker blocks on this list, and would hear of nothing.
  call_or_repair('LLEN', prefix .. 'control:' .. id)
  local reply = {1, draining, call_or_repair('ZCARD', prefix .. 'active:jobs:' .. id)}
  for _, job_id in ipairs(cancellations(id)) do reply[#reply + 1] = job_id end
  return reply
end

-- Nothing may die any more that would shorten the list of those that did.
settle().drop_expired_letters(letters[1], 100)
-- Queues may come and go with the tenants of an application; a day after its last worker one is forgotten.
pcall_or_repair('ZREMRANGEBYSCORE', KEYS[4], '-inf', now_us / 1000000 - 86400)

local replies = {now_ms, -1}
for at = FIRST, #ARGV - 1, FIELDS_PER_WORKER do replies[#replies + 1] = beat(at) end
unblock_others()
local buried = has_blamed and blame().buried() or 0
if buried > 0 then
  count(KEYS[6], 'dead', buried)
  count_ended('dead', buried)
end
local first = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')
-- A score may be as far away as +inf, which no integer reply can carry.
if first[2] then replies[2] = math.min(2 ^ 52, math.max(tonumber(first[2]), state.reap_not_before_ms)) end
return replies
