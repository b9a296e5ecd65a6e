-- claim_jobs: hand due jobs to one worker, each to nobody else.
-- needs: context, wake, settle, claimed_fields
-- Lock first, remove second: an 0.7 worker writes a retry as "add to queue, then drop the lock", and
-- a claim that removed first would lose the job in between.
-- KEYS     1 leases   2 active set of the worker   3 worker record   4 guard   5 drain flag of its pod
--          then the queues, in order of preference
-- ARGV     1 key prefix   2 worker id   3 incarnation ('' = caller without a lease)   4 token base
--          5 how many   6 default job timeout (s)   7 lock extension (s)   8 lock TTL (ms), 0 = by job
--          9 wait if there is too little (ms), 0 = the caller will not wait
--          10 dead letter list   11 dead letter TTL (s)
--          12… ids to claim, due or not, instead of what is due
-- Returns  {code, now ms, next due ms or -1, more due left 0/1, ids of suspects to make room for,
--           ids without a job, ids of jobs and keys of queues of the wrong type, jobs}
--          code: 1 answered   0 lease lost   2 pod drains   3 too early after a restart of Redis
--          job:  {id, index of its queue, due score, token before, claim fields…}
local leases, active, record, guard, drain = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local worker_id, incarnation, token_base = ARGV[2], ARGV[3], ARGV[4]
local wanted, lock_ttl_ms, wait_ms = tonumber(ARGV[5]), tonumber(ARGV[8]), tonumber(ARGV[9])
local default_timeout_s, extension_s = tonumber(ARGV[6]), tonumber(ARGV[7])
local dlq, dlq_ttl_s = ARGV[10], tonumber(ARGV[11])
local FIRST_QUEUE, FIRST_ID = 6, 12
-- How far past locked or suspect entries to look in one queue before leaving the rest for later.
local LOOK_AHEAD = 1000
-- How many entries without a job to drop on the way; a million of them must not stop Redis for seconds.
local MOST_DROPPED = 5000
-- How long one worker makes room for a suspect before another is asked to do so too, at first and at most.
local RESERVED_MS, MOST_RESERVED_MS = 30000, 3600000
-- How many entries behind a suspect are looked at for others, so that room is made once for all of them.
local NEIGHBOURS = 100
local MAX_MS = 2 ^ 52
local LONG_MEMBER = string.rep('-', 65)

local is_named = #ARGV >= FIRST_ID

local jobs, missing, unreadable, make_room_for = {}, {}, {}, {}
local next_due_ms, more_due = -1, 0
local function answer(code)
  return {code, now_ms, next_due_ms, more_due, make_room_for, missing, unreadable, jobs}
end

if incarnation ~= '' then
  local lease_ends_ms = tonumber(sure('ZSCORE', leases, worker_id) or '')
  if not lease_ends_ms or lease_ends_ms <= now_ms
    or redis.pcall('HGET', record, 'incarnation') ~= incarnation then return answer(0) end
  if redis.call('EXISTS', drain) == 1 then return answer(2) end
  local not_before_ms = tonumber(sure('HGET', guard, 'claim_not_before_ms') or '')
  if not_before_ms and now_ms < not_before_ms then
    next_due_ms = not_before_ms
    return answer(3)
  end
end

-- The worker is awake. This is also the first write, and one that Redis allows when it is out of
-- memory: after it the writes below are allowed too, so that a full Redis can still be drained.
for q = FIRST_QUEUE, #KEYS do
  local waiting = prefix .. 'waiting:' .. KEYS[q]
  if sure('ZREM', waiting, worker_id) == 1 and redis.call('EXISTS', waiting) == 0 then
    redis.call('DEL', prefix .. 'wake:' .. KEYS[q])
  end
end

-- Numbers are printed once here and not by every call below, which adds up.
local start_iso, start_s = iso(now_us), digits(math.floor(now_us / 1000000))
local ttl_ms_by_timeout = {}

-- True when the lock is this worker's now. A lock whose holder shows no sign of life is stale.
local function take_lock(id, ttl_ms)
  local lock = prefix .. 'lock:job:' .. id
  if redis.call('SET', lock, worker_id, 'NX', 'PX', ttl_ms) then return true end
  local holder = redis.pcall('GET', lock)
  if type(holder) == 'string' and (sure('ZSCORE', leases, holder)
    or redis.call('EXISTS', prefix .. 'health:worker:' .. holder) == 1
    or sure('ZSCORE', prefix .. 'active:jobs:' .. holder, id)) then return false end
  redis.call('SET', lock, worker_id, 'PX', ttl_ms)
  return true
end

-- Have this worker come back for a suspect with empty hands. False when another one, alive, was asked to and still
-- has time. Whoever was asked claims nothing but the suspect, by its id, until that is gone from the queue; so it
-- waits no longer than the longest job of the first one asked. Others may be free sooner and are asked too, but the
-- fleet must not stand still where all jobs are long: the time between doubles.
local function reserve(id, job)
  local reserved = redis.call('HMGET', job, 'reserved_by', 'reserved_until_ms', 'reserved_since_ms')
  local by, until_ms, since_ms = reserved[1], tonumber(reserved[2] or '') or 0, tonumber(reserved[3] or '')
  if not (by and since_ms and since_ms <= now_ms) then since_ms = now_ms end
  local patience_ms = math.max(RESERVED_MS, math.min(now_ms - since_ms, MOST_RESERVED_MS))
  -- Nobody reserves for longer; a time beyond would keep the job from everyone.
  local is_reserved = by and until_ms > now_ms and until_ms <= now_ms + patience_ms
    and (tonumber(sure('ZSCORE', leases, by) or '') or 0) > now_ms
  if is_reserved and by ~= worker_id then return false end
  if not is_reserved then
    redis.call('HSET', job, 'reserved_by', worker_id, 'reserved_until_ms', digits(now_ms + patience_ms),
      'reserved_since_ms', digits(since_ms))
  end
  make_room_for[#make_room_for + 1] = id
  return true
end

-- A job that was in hand when a worker crashed runs alone, so that a second crash says who did it.
local function may_take_suspect(id, job, score)
  -- Who comes for it by its id may be late: meanwhile it may have failed, and be due again only later.
  if (tonumber(score) or MAX_MS) > now_ms then return false end
  if #jobs == 0 and sure('ZCARD', active) == 0 then return true end
  if is_named then
    make_room_for[#make_room_for + 1] = id
  elseif reserve(id, job) then
    -- Whatever is taken now would have to end first.
    wanted = #jobs
  end
  return false
end

local function reserve_neighbours(queue, skipped)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue, '-inf', now_ms, 'LIMIT', skipped, NEIGHBOURS)) do
    local job = prefix .. 'job:' .. id
    if type(redis.pcall('HGET', job, 'suspect')) == 'string' then reserve(id, job) end
  end
end

-- What cannot be read as a job must not come up again and again, nor vanish: the key is kept aside.
local function set_aside(id, job, kind)
  local aside = set_key_aside(job)
  redis.call('EXPIRE', aside, dlq_ttl_s)
  bury(id, dlq, 'The job key held a ' .. kind .. ' instead of a hash; it was moved to ' .. aside .. '.', dlq_ttl_s)
  unreadable[#unreadable + 1] = id
end

-- Try one id. Returns 'taken', 'gone' (no longer in the queue) or 'left' (it stays queued).
local function try_claim(id, score, q, taken)
  local job = prefix .. 'job:' .. id
  local fields = redis.pcall('HMGET', job, unpack(CLAIMED_FIELDS))
  if fields.err then
    set_aside(id, job, redis.call('TYPE', job).ok)
    return 'gone'
  end
  local known = fields[1] or redis.call('EXISTS', job) == 1
  if not known and incarnation ~= '' then
    missing[#missing + 1] = id
    return 'gone'
  end
  local is_suspect = fields[#CLAIMED_FIELDS]
  if is_suspect and not may_take_suspect(id, job, score) then return 'left' end
  local timeout = fields[TIMEOUT_FIELD]
  local ttl_ms = ttl_ms_by_timeout[timeout]
  if not ttl_ms then
    ttl_ms = digits(lock_ttl_ms > 0 and lock_ttl_ms
      or lock_ttl_ms_of(timeout, default_timeout_s, extension_s))
    ttl_ms_by_timeout[timeout] = ttl_ms
  end
  if not take_lock(id, ttl_ms) then return 'left' end
  if known then
    redis.call('HSET', job, 'status', 'ACTIVE', 'start_time', start_iso, 'worker_id', worker_id,
      'attempt_token', token_base .. '.' .. (#jobs + 1), 'claimed_queue', KEYS[q],
      'claimed_score', score)
    -- Whoever sets an expiry writes completion_time with it, and 0.7 leaves both on an id used again.
    if fields[#CLAIMED_FIELDS - 2] then redis.call('PERSIST', job) end
    if is_suspect then redis.call('HDEL', job, 'reserved_by', 'reserved_until_ms', 'reserved_since_ms') end
    taken[#taken + 1] = start_s
    taken[#taken + 1] = id
  end
  jobs[#jobs + 1] = {id, q - FIRST_QUEUE + 1, score, fields}
  return is_suspect and 'alone' or 'taken'
end

-- Take what one scan found; returns how many entries stay queued in front of what comes next.
local function claim_page(page, q)
  local taken, gone, left = {}, {}, 0
  for i = 1, #page, 2 do
    if #jobs >= wanted then break end
    local verdict = try_claim(page[i], page[i + 1], q, taken)
    if verdict == 'left' then left = left + 1 else gone[#gone + 1] = page[i] end
    if verdict == 'alone' then wanted = #jobs end
  end
  if #taken > 0 then
    local held = sure('ZCARD', active)
    -- Up to 128 short members Redis keeps a set as a list, and searches all of it for every change.
    -- One long member, there for a moment, has it kept as a tree from the start.
    local is_new = #taken > 32 and held == 0
    if is_new then redis.call('ZADD', active, 0, LONG_MEMBER) end
    redis.call('ZADD', active, unpack(taken))
    if is_new then redis.call('ZREM', active, LONG_MEMBER) end
    -- Without a lease of its own a caller is given until its lock ends; then its jobs are reaped.
    -- Not so a registered worker, whose death would then be noticed only when its longest lock ends.
    if incarnation == '' then
      local how = redis.call('EXISTS', record) == 1 and 'NX' or 'GT'
      sure('ZADD', leases, how, now_ms + lock_ttl_ms, worker_id)
    end
  end
  -- Last, so that whatever fails above leaves the jobs queued.
  if #gone > 0 then redis.call('ZREM', KEYS[q], unpack(gone)) end
  return left
end

for q = FIRST_QUEUE, #KEYS do
  local kind = redis.call('TYPE', KEYS[q]).ok
  if kind ~= 'zset' then
    if kind ~= 'none' then unreadable[#unreadable + 1] = KEYS[q] end
  elseif is_named then
    for i = FIRST_ID, #ARGV do
      local score = redis.call('ZSCORE', KEYS[q], ARGV[i])
      if score then claim_page({ARGV[i], score}, q) end
    end
  else
    local skipped = 0
    while #jobs < wanted and skipped < LOOK_AHEAD do
      if #missing + #unreadable >= MOST_DROPPED then
        wanted = #jobs
        break
      end
      -- unpack and the Lua stack bear a few thousand entries; a page stays well below.
      local size = math.min(wanted - #jobs, 500)
      local page = redis.call('ZRANGEBYSCORE', KEYS[q], '-inf', now_ms, 'WITHSCORES',
        'LIMIT', skipped, size)
      skipped = skipped + claim_page(page, q)
      if #page < size * 2 then break end
    end
    if #make_room_for > 0 then reserve_neighbours(KEYS[q], skipped) end
    if #jobs >= wanted then
      if #redis.call('ZRANGEBYSCORE', KEYS[q], '-inf', now_ms, 'LIMIT', skipped, 1) == 1 then
        more_due = 1
        wake(KEYS[q], 1)
      end
      break
    end
    local ahead = redis.call('ZRANGEBYSCORE', KEYS[q], '(' .. digits(now_ms), '+inf', 'WITHSCORES',
      'LIMIT', 0, 1)
    -- A score may be as far away as +inf, which no integer reply can carry.
    local due_ms = math.min(tonumber(ahead[2] or '') or MAX_MS, MAX_MS)
    if due_ms < MAX_MS and (next_due_ms < 0 or due_ms < next_due_ms) then
      next_due_ms = math.ceil(due_ms)
    end
  end
end

-- Announcing the wait in the same step as finding too little leaves no gap for a job to slip through.
if #jobs < wanted and wait_ms > 0 then
  for q = FIRST_QUEUE, #KEYS do
    local waiting = prefix .. 'waiting:' .. KEYS[q]
    redis.call('ZREMRANGEBYSCORE', waiting, '-inf', now_ms)
    redis.call('ZADD', waiting, now_ms + wait_ms, worker_id)
    redis.call('PEXPIRE', waiting, wait_ms + 60000)
  end
end
return answer(1)
