-- claim_jobs: hand due jobs to one worker, each to no other.
-- needs: context, wake, flow, enqueue, batch, settle, suspects, minute, claimed_fields
-- Lock first, remove second: an 0.7 worker writes a retry as "add to queue, then drop the lock", and
-- a claim that removed first would lose the job in between.
-- KEYS     1 leases   2 active set of the worker   3 worker record   4 guard   5 drain flag of its pod
--          then the queues, in order of preference
-- ARGV     1 key prefix   2 worker id   3 incarnation ('' = caller without a lease)   4 token base
--          5 how many   6 default job timeout (s)   7 lock extension (s)   8 lock TTL (ms), 0 = by job
--          9 wait if there is too little (ms), 0 = the caller will not wait
--          10 dead letter list   11 dead letter TTL (s)   12 pool of the worker or ''
--          13 weights of the queues, comma-separated, '' = in order
--          14… ids to claim, due or not, instead of what is due
-- Returns  {code, now ms, next due ms or -1, more due left 0/1, ids of suspects to make room for,
--           ids without a job, ids of jobs and keys of queues of the wrong type, jobs}
--          code: 1 answered   0 lease lost   2 pod drains   4 its pool is paused
--                3 just after a restart of Redis: answered for what has fallen due since, the rest waits
--          job:  {id, index of its queue, due score, {claimed fields…, token before, suspect or nil}}, and behind
--                those the head start of a job that has one (ms)
local leases, active, record, guard, drain = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local worker_id, incarnation, token_base = ARGV[2], ARGV[3], ARGV[4]
local wanted, lock_ttl_ms, wait_ms = tonumber(ARGV[5]), tonumber(ARGV[8]), tonumber(ARGV[9])
local default_timeout_s, extension_s = tonumber(ARGV[6]), tonumber(ARGV[7])
local dlq, dlq_ttl_s = ARGV[10], tonumber(ARGV[11])
local pool, weights = ARGV[12], ARGV[13]
local pod_uid = string.sub(drain, #prefix + #'drain:' + 1)
local FIRST_QUEUE, FIRST_ID = 6, 14
local MAX_MS = 2 ^ 52

local is_named = #ARGV >= FIRST_ID
local is_limited, is_draining = is_controlled(drain)
local parked_count, passed_on = 0, 0
-- Behind what the worker gets: what only limits ask for.
if is_limited then
  FIELDS_READ[#FIELDS_READ + 1] = 'limit_key'
  FIELDS_READ[#FIELDS_READ + 1] = 'job_params'
  FIELDS_READ[#FIELDS_READ + 1] = 'extras'
end

local jobs, missing, unreadable, make_room_for = {}, {}, {}, {}
local next_due_ms, more_due = -1, 0
-- What a claim is answered with, and the lowest score it takes.
local code, lowest = 1, '-inf'
local function answer(code)
  return {code, now_ms, next_due_ms, more_due, make_room_for, missing, unreadable, jobs}
end

local function note_next(due_ms)
  if due_ms and due_ms < MAX_MS and (next_due_ms < 0 or due_ms < next_due_ms) then next_due_ms = math.ceil(due_ms) end
end

if incarnation ~= '' then
  local lease_ends_ms = tonumber(call_or_repair('ZSCORE', leases, worker_id) or '')
  if not lease_ends_ms or lease_ends_ms <= now_ms
    or redis.pcall('HGET', record, 'incarnation') ~= incarnation then return answer(0) end
  if is_draining then return answer(2) end
  local not_before_ms = tonumber(call_or_repair('HGET', guard, 'claim_not_before_ms') or '')
  if not_before_ms and now_ms < not_before_ms then
    next_due_ms = not_before_ms
    local restarted_ms = tonumber(redis.call('HGET', guard, 'restarted_ms') or '')
    -- No worker had a job that was not due then. But forgotten claims have left their slots, and a limit must hold.
    if is_named or is_limited or not restarted_ms then return answer(3) end
    code, lowest = 3, '(' .. digits(restarted_ms)
  end
  if is_limited and pool ~= '' and flow().is_paused('pool:' .. pool) then return answer(4) end
end

-- The worker is awake. This is also the first write, and one that Redis allows when it is out of
-- memory: after it the writes below are allowed too, so that a full Redis can still be drained.
for q = FIRST_QUEUE, #KEYS do
  local waiting = prefix .. 'waiting:' .. KEYS[q]
  if call_or_repair('ZREM', waiting, worker_id) == 1 and redis.call('EXISTS', waiting) == 0 then
    redis.call('DEL', prefix .. 'wake:' .. KEYS[q])
  end
end

-- Numbers are printed once here and not by every call below, which adds up.
local start_iso, start_s = iso(now_us), time[1]
local ttl_ms_by_timeout = {}

-- True when the lock is this worker's now. A lock whose holder shows no sign of life is stale.
local function take_lock(id, ttl_ms)
  local lock = prefix .. 'lock:job:' .. id
  if redis.call('SET', lock, worker_id, 'NX', 'PX', ttl_ms) then return true end
  local holder = redis.pcall('GET', lock)
  if type(holder) == 'string' and (call_or_repair('ZSCORE', leases, holder)
    or redis.call('EXISTS', prefix .. 'health:worker:' .. holder) == 1
    or call_or_repair('ZSCORE', prefix .. 'active:jobs:' .. holder, id)) then return false end
  redis.call('SET', lock, worker_id, 'PX', ttl_ms)
  return true
end

-- What a queue may give now: everything, or what its pause and its limits leave.
local function room_of(q)
  if not is_limited then return math.huge end
  local room, ready_ms = flow().queue_room(KEYS[q])
  note_next(ready_ms)
  return room
end

-- Functions that most calls do not need, made on first use: every function costs each call that defines it.
local special_functions
local function special()
  if special_functions then return special_functions end
  -- Have this worker come back for a suspect with empty hands. False when another one, alive, was asked to and still
  -- has time. A worker that was asked claims nothing but the suspect, by its id, until that has left the queue; so it
  -- waits no longer than the longest job of the first one asked. Others may be free sooner and are asked too, but the
  -- fleet must not stand still where all jobs are long: the time between doubles.
  local function reserve(id, job)
    -- How long one worker makes room for a suspect before another is asked to do so too, at first and at most.
    local RESERVED_MS, MOST_RESERVED_MS = 30000, 3600000
    local reserved = redis.call('HMGET', job, 'reserved_by', 'reserved_until_ms', 'reserved_since_ms')
    local by, until_ms, since_ms = reserved[1], tonumber(reserved[2] or '') or 0, tonumber(reserved[3] or '')
    if not (by and since_ms and since_ms <= now_ms) then since_ms = now_ms end
    local patience_ms = math.max(RESERVED_MS, math.min(now_ms - since_ms, MOST_RESERVED_MS))
    -- No worker reserves for longer; a time beyond would keep the job from all of them.
    local is_reserved = by and until_ms > now_ms and until_ms <= now_ms + patience_ms
      and (tonumber(call_or_repair('ZSCORE', leases, by) or '') or 0) > now_ms
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
    -- Nor does it help to make room while a suspect runs in another process of this pod.
    if suspects().is_place_taken(pod_uid, worker_id) then return false end
    if #jobs == 0 and call_or_repair('ZCARD', active) == 0 then return true end
    if is_named then
      make_room_for[#make_room_for + 1] = id
    elseif reserve(id, job) then
      -- Whatever is taken now would have to end first.
      wanted = #jobs
    end
    return false
  end

  -- How many entries behind a suspect are looked at for others, so that room is made once for all of them.
  local NEIGHBOURS = 100
  local function reserve_neighbours(queue, skipped)
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue, lowest, now_ms, 'LIMIT', skipped, NEIGHBOURS)) do
      local job = prefix .. 'job:' .. id
      if type(redis.pcall('HGET', job, 'suspect')) == 'string' then reserve(id, job) end
    end
  end

  -- What cannot be read as a job must not come up again and again, nor vanish: the key is kept aside.
  local function set_aside(id, job, kind)
    local aside = set_key_aside(job)
    redis.call('EXPIRE', aside, dlq_ttl_s)
    settle().bury(id, dlq, 'The job key held a ' .. kind .. ' instead of a hash; it was moved to ' .. aside .. '.', dlq_ttl_s)
    unreadable[#unreadable + 1] = id
  end

  -- Divide the claim among the queues that have due jobs, each job going to the queue that is furthest behind its weight.
  -- How far everyone is stays in the record of the worker, so that claims of one job are fair too. A queue that had
  -- nothing due saves nothing up for later; one that has something is never passed over for long.
  local function shares_by_weight(queues)
    local weight_of, passes, shares, due, position = {}, {}, {}, {}, 0
    local saved = incarnation ~= '' and redis.call('HGET', record, 'passes') or ''
    local number = string.gmatch(saved, '[^,]+')
    for text in string.gmatch(weights, '[^,]+') do
      weight_of[FIRST_QUEUE + position] = math.max(tonumber(text) or 1, 0.001)
      passes[FIRST_QUEUE + position] = tonumber(number() or '') or 0
      position = position + 1
    end
    local furthest_behind = math.huge
    for _, q in ipairs(queues) do
      shares[q] = 0
      due[q] = math.min(room_of(q), redis.call('ZCOUNT', KEYS[q], lowest, now_ms))
      if due[q] > 0 then furthest_behind = math.min(furthest_behind, passes[q]) end
    end
    for q, pass in pairs(passes) do passes[q] = math.max(pass, furthest_behind) - furthest_behind end
    for _ = 1, wanted do
      local next_queue
      for _, q in ipairs(queues) do
        if due[q] > 0 and (not next_queue or passes[q] < passes[next_queue]) then next_queue = q end
      end
      if not next_queue then break end
      shares[next_queue], due[next_queue] = shares[next_queue] + 1, due[next_queue] - 1
      passes[next_queue] = passes[next_queue] + 1 / weight_of[next_queue]
    end
    if incarnation ~= '' and furthest_behind < math.huge then
      local texts = {}
      for q = FIRST_QUEUE, FIRST_QUEUE + position - 1 do texts[#texts + 1] = string.format('%.6f', passes[q]) end
      redis.call('HSET', record, 'passes', table.concat(texts, ','))
    end
    return shares
  end

  special_functions = {may_take_suspect = may_take_suspect, reserve_neighbours = reserve_neighbours,
    set_aside = set_aside, shares_by_weight = shares_by_weight}
  return special_functions
end

-- Try one id. Returns 'taken' or 'alone', 'gone' (to be dropped from the queue), 'parked' (no longer in it) or 'left'
-- (it stays queued).
local function try_claim(id, score, q, taken)
  local job = prefix .. 'job:' .. id
  local fields = redis.pcall('HMGET', job, unpack(FIELDS_READ))
  if fields.err then
    special().set_aside(id, job, redis.call('TYPE', job).ok)
    return 'gone'
  end
  -- One field in the place of another that only this script looks at: a field that is not there is searched for the
  -- longest, and few jobs have all their arguments in one object.
  local completed, limit_key, extras = fields[PARAMS_FIELD], nil, nil
  if is_limited then
    limit_key, fields[PARAMS_FIELD], extras = unpack(fields, SUSPECT_FIELD + 1, SUSPECT_FIELD + 3)
    for at = SUSPECT_FIELD + 3, SUSPECT_FIELD + 1, -1 do fields[at] = nil end
  else
    fields[PARAMS_FIELD] = not (fields[ARGS_FIELD] or fields[KWARGS_FIELD]) and redis.call('HGET', job, 'job_params')
  end
  local known = fields[1] or redis.call('EXISTS', job) == 1
  if not known and incarnation ~= '' then
    missing[#missing + 1] = id
    return 'gone'
  end
  local scopes
  if is_limited and known then
    scopes = flow().scopes_of(job, fields[1] or '',
      {limit_key, fields[ARGS_FIELD], fields[KWARGS_FIELD], fields[PARAMS_FIELD]})
    local blocked, look_ms = flow().blocked_by(fields[1] or '', scopes)
    if blocked then
      if flow().park(id, job, fields[1] or '', blocked, KEYS[q], score, look_ms) then passed_on = passed_on + 1 end
      parked_count = parked_count + 1
      note_next(look_ms)
      return 'parked'
    end
  end
  local is_suspect = fields[SUSPECT_FIELD]
  if is_suspect and not special().may_take_suspect(id, job, score) then return 'left' end
  local timeout = fields[TIMEOUT_FIELD]
  local ttl_ms = ttl_ms_by_timeout[timeout]
  if not ttl_ms then
    ttl_ms = digits(lock_ttl_ms > 0 and lock_ttl_ms
      or lock_ttl_ms_of(timeout, default_timeout_s, extension_s))
    ttl_ms_by_timeout[timeout] = ttl_ms
  end
  if not take_lock(id, ttl_ms) then return 'left' end
  if known then
    local token = token_base .. '.' .. (#jobs + 1)
    local slots
    if is_limited then
      -- Counted in everything that limits it.
      if scopes and scopes.rate then flow().note_start(scopes.rate, token) end
      slots = flow().occupy(id, scopes, flow().enter_queue(KEYS[q], token))
    end
    if slots then
      redis.call('HSET', job, 'status', 'ACTIVE', 'start_time', start_iso, 'worker_id', worker_id,
        'attempt_token', token, 'claimed_queue', KEYS[q], 'claimed_score', score, 'slots', slots, 'extras',
        flow().with_slots(extras))
    else
      redis.call('HSET', job, 'status', 'ACTIVE', 'start_time', start_iso, 'worker_id', worker_id,
        'attempt_token', token, 'claimed_queue', KEYS[q], 'claimed_score', score)
    end
    -- Every script that sets an expiry writes completion_time with it, and 0.7 leaves both on an id used again.
    if completed then redis.call('PERSIST', job) end
    if is_suspect then
      suspects().take_place(pod_uid, id, token, ttl_ms)
      redis.call('HDEL', job, 'reserved_by', 'reserved_until_ms', 'reserved_since_ms')
    end
    taken[#taken + 1] = start_s
    taken[#taken + 1] = id
  end
  jobs[#jobs + 1] = {id, q - FIRST_QUEUE + 1, score, fields}
  return is_suspect and 'alone' or 'taken'
end

-- Take what one scan found, up to so many jobs in all; returns how many entries stay queued in front of what comes next.
local function claim_page(page, q, most)
  local taken, gone, left = {}, {}, 0
  for i = 1, #page, 2 do
    if #jobs >= wanted or #jobs >= most then break end
    local verdict = try_claim(page[i], page[i + 1], q, taken)
    if verdict == 'left' then left = left + 1
    elseif verdict ~= 'parked' then gone[#gone + 1] = page[i] end
    if verdict == 'alone' then wanted = #jobs end
  end
  if #taken > 0 then
    local in_hand = call_or_repair('ZCARD', active)
    -- Up to 128 short members Redis keeps a set as a list, and searches all of it for every change.
    -- One long member, there for a moment, has it kept as a tree from the start.
    local long_member = #taken > 32 and in_hand == 0 and string.rep('-', 65)
    if long_member then redis.call('ZADD', active, 0, long_member) end
    redis.call('ZADD', active, unpack(taken))
    if long_member then redis.call('ZREM', active, long_member) end
    if is_limited then flow().note_slots() end
    -- Without a lease of its own a caller is given until its lock ends; then its jobs are reaped.
    -- Not so a registered worker, whose death would then be noticed only when its longest lock ends.
    if incarnation == '' then
      local how = redis.call('EXISTS', record) == 1 and 'NX' or 'GT'
      call_or_repair('ZADD', leases, how, now_ms + lock_ttl_ms, worker_id)
    end
  end
  -- Last, so that whatever fails above leaves the jobs queued.
  if #gone > 0 then redis.call('ZREM', KEYS[q], unpack(gone)) end
  return left
end

-- How many entries in front of a queue are known to stay there, so that a second look begins behind them.
local skipped_in = {}

-- Take up to `share` due jobs of one queue, looking past those that stay.
local function claim_due(q, share)
  -- How far past locked or suspect entries to look in one queue before leaving the rest for later.
  local LOOK_AHEAD = 1000
  -- How many entries without a job to drop on the way, a million of which must not stop Redis for seconds; and how many
  -- jobs that may not start now to park.
  local MOST_DROPPED, MOST_PARKED = 5000, 1000
  local most, skipped = #jobs + share, skipped_in[q] or 0
  while #jobs < math.min(wanted, most) and skipped < LOOK_AHEAD do
    if #missing + #unreadable >= MOST_DROPPED or parked_count >= MOST_PARKED then
      wanted = #jobs
      break
    end
    -- unpack and the Lua stack bear a few thousand entries; a page stays well below.
    local size = math.min(math.min(wanted, most) - #jobs, 500)
    local page = redis.call('ZRANGEBYSCORE', KEYS[q], lowest, now_ms, 'WITHSCORES', 'LIMIT', skipped, size)
    local passed_on_before = passed_on
    skipped = skipped + claim_page(page, q, most)
    -- What came back in the place of a parked job may be in front of what has been looked at.
    if #page < size * 2 and passed_on == passed_on_before then break end
  end
  skipped_in[q] = skipped
  if #make_room_for > 0 then special().reserve_neighbours(KEYS[q], skipped) end
end

-- Jobs whose time has come while they were parked are in their queues before these are looked at.
if is_limited then
  local MOST_SCOPES, MOST_LET_IN = 20, 500
  note_next(flow().admit_parked(MOST_SCOPES, MOST_LET_IN))
end

-- Asked only of the queues that the claim gets to.
local is_set = {}
local function is_readable(q)
  if is_set[q] == nil then
    local kind = redis.call('TYPE', KEYS[q]).ok
    is_set[q] = kind == 'zset'
    if kind ~= 'zset' and kind ~= 'none' then unreadable[#unreadable + 1] = KEYS[q] end
  end
  return is_set[q]
end

if is_named then
  for q = FIRST_QUEUE, #KEYS do
    for i = FIRST_ID, is_readable(q) and #ARGV or 0 do
      local score = room_of(q) > #jobs and redis.call('ZSCORE', KEYS[q], ARGV[i])
      if score then claim_page({ARGV[i], score}, q, wanted) end
    end
  end
else
  if weights ~= '' then
    local readable = {}
    for q = FIRST_QUEUE, #KEYS do
      if is_readable(q) then readable[#readable + 1] = q end
    end
    local shares = #readable > 1 and special().shares_by_weight(readable)
    for _, q in ipairs(shares and readable or {}) do claim_due(q, shares[q]) end
  end
  -- In order; with weights, what the shares could not be filled with.
  for q = FIRST_QUEUE, #KEYS do
    if is_readable(q) then
      local room = room_of(q)
      if room > 0 then
        if #jobs < wanted then claim_due(q, room) end
        if #jobs >= wanted then
          if more_due == 0
            and #redis.call('ZRANGEBYSCORE', KEYS[q], lowest, now_ms, 'LIMIT', skipped_in[q] or 0, 1) == 1 then
            more_due = 1
            wake(KEYS[q], 1)
          end
          -- By weight a claim may have ended in any queue, with so many parked that the rest was left for later.
          if more_due == 1 or weights == '' then break end
        end
      end
      local ahead = redis.call('ZRANGEBYSCORE', KEYS[q], '(' .. now_ms, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      -- A score may be as far away as +inf, which no integer reply can carry.
      note_next(math.min(tonumber(ahead[2] or '') or MAX_MS, MAX_MS))
    end
  end
end

-- For the charts: how many started in each queue, and how long they had waited. One reading and one writing.
local first = 1
-- Jobs of one queue mostly stand together; with weights there may be two such runs.
while first <= #jobs do
  local position, last, waited_ms, longest_ms = jobs[first][2], first, 0, 0
  local job = jobs[first]
  repeat
    local due_ms = tonumber(job[3])
    local wait_ms = now_ms - due_ms
    -- A head start by priority makes a job look older than it is. Such a score is no whole number.
    if due_ms % 1 ~= 0 then
      local boost_ms, fields = redis.call('HGET', prefix .. 'job:' .. job[1], 'boost_ms'), job[4]
      if boost_ms then
        wait_ms = wait_ms - (tonumber(boost_ms) or 0)
        fields[#fields + 1] = boost_ms
      end
    end
    waited_ms = waited_ms + wait_ms
    if wait_ms > longest_ms then longest_ms = wait_ms end
    last = last + 1
    job = jobs[last]
  until not job or job[2] ~= position
  local name = short_name(KEYS[FIRST_QUEUE + position - 1])
  local started_field, wait_field, longest_field = name .. '|started', name .. '|wait_ms', name .. '|wait_max_ms'
  local so_far = call_or_repair('HMGET', MINUTE, started_field, wait_field, longest_field)
  local is_first = not so_far[1]
  for n = 1, 3 do
    local number = tonumber(so_far[n] or '')
    -- Another program may have written anything; what is no number starts anew.
    so_far[n] = number and number < 2 ^ 52 and number or 0
  end
  redis.call('HSET', MINUTE, started_field, so_far[1] + last - first,
    wait_field, math.floor(so_far[2] + math.max(0, waited_ms)), longest_field, math.floor(math.max(so_far[3], longest_ms)))
  if is_first then redis.call('EXPIRE', MINUTE, STATISTICS_SECONDS) end
  first = last
end
-- It may have come into a queue that had been passed by then.
if passed_on > 0 and #jobs < wanted then more_due = 1 end

-- Announcing the wait in the same step as finding too little leaves no gap for a job to slip through. Who has to wait
-- for others polls, and takes no wake-up from those that may have everything.
if #jobs < wanted and wait_ms > 0 and code == 1 then
  for q = FIRST_QUEUE, #KEYS do
    local waiting = prefix .. 'waiting:' .. KEYS[q]
    redis.call('ZREMRANGEBYSCORE', waiting, '-inf', now_ms)
    redis.call('ZADD', waiting, now_ms + wait_ms, worker_id)
    redis.call('PEXPIRE', waiting, wait_ms + 60000)
  end
end
return answer(code)
