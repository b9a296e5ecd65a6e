-- enqueue: how one new job comes into being, for producers and for cron alike.
-- needs: context, wake, flow

local JOB_ARGUMENTS = 14
local now_iso = iso(now_us)

-- Whether a function takes no new jobs. Mostly there is no such key; what is in it is read once.
local pauses = redis.call('EXISTS', prefix .. 'pauses') == 1 and flow().read_objects(prefix .. 'pauses', {})
local function is_disabled(name)
  local pause = pauses and pauses['function:' .. name]
  return pause and pause.state == 'disabled'
end

-- What most jobs do without, made by the first that asks for it.
local made
local function seldom()
  if made then return made end
  -- A duplicate of a unique job is deferred until the lock runs out, never refused.
  local function due_after_unique(unique_key, id, due_ms, ttl_seconds)
    local lock = prefix .. 'lock:unique:' .. unique_key
    local remaining_s = redis.call('TTL', lock)
    -- The job's own lock, from a call whose answer got lost, holds it back from nothing.
    if redis.pcall('GET', lock) == id then return due_ms end
    if remaining_s > 0 then return math.max(due_ms, now_ms + remaining_s * 1000) end
    local ttl_s = math.max(ttl_seconds, math.floor((due_ms - now_ms) / 1000) + 1)
    redis.call('SET', lock, id, 'EX', ttl_s, 'NX')
    return due_ms
  end

  -- What one step of priority is worth: a job of priority 3 is served like one that has waited three minutes longer. So
  -- it overtakes, but no job waits for ever behind those that keep coming.
  local PRIORITY_MS = 60000

  -- Options that become a field of the job under their own name, and the type of each. A new one is a line here and one
  -- in jobs/options.py.
  local STORED_OPTIONS = {
    {'limit_key', 'string'},
    {'parent_id', 'string'},
    {'batch_id', 'string'},
  }

  -- What few jobs ask for. Read before anything of a call is written: what makes no sense must not leave a batch half
  -- stored, nor stop an outcome whose job has such a follow-up. Nil for that.
  local LONGEST_OPTION_MS = 315360000000
  local TEXT_OPTIONS = {'idempotency_key', 'debounce_key'}
  local TIME_OPTIONS = {'idempotency_ms', 'debounce_max_ms'}

  local function is_option_time(value)
    return type(value) == 'number' and value >= 1 and value <= LONGEST_OPTION_MS
  end

  local options_by_text = {}
  local function read_options(text)
    if options_by_text[text] then return options_by_text[text] end
    local is_json, options = pcall(cjson.decode, text)
    if not is_json or type(options) ~= 'table' then return nil end
    for _, option in ipairs(STORED_OPTIONS) do
      local value = options[option[1]]
      if value ~= nil and type(value) ~= option[2] then return nil end
    end
    for _, name in ipairs(TEXT_OPTIONS) do
      if options[name] ~= nil and type(options[name]) ~= 'string' then return nil end
    end
    for _, name in ipairs(TIME_OPTIONS) do
      if options[name] ~= nil and not is_option_time(options[name]) then return nil end
    end
    if options.idempotency_key and not options.idempotency_ms then return nil end
    if options.priority ~= nil and type(options.priority) ~= 'number' then return nil end
    if options.next ~= nil then
      local is_writable, chain = pcall(cjson.encode, options.next)
      if not is_writable then return nil end
      options.next = chain
    end
    options_by_text[text] = options
    return options
  end

  -- True while a job waits to be started, in its queue or parked.
  local function is_waiting(id)
    local seen = redis.pcall('HMGET', prefix .. 'job:' .. id, 'status', 'parked_in', 'claimed_queue', 'queue_name')
    if seen.err or (seen[1] ~= 'PENDING' and seen[1] ~= 'RETRYING') then return false end
    return seen[2] or type(redis.pcall('ZSCORE', home_queue(nil, seen[4]), id)) == 'string'
      or type(redis.pcall('ZSCORE', home_queue(seen[3], seen[4]), id)) == 'string'
  end

  -- Which job a call is really about: {code, id} when an earlier one stands for it, else the id to write to.
  local function choose_id(id, options, due_ms)
    if options.idempotency_key then
      local known = prefix .. 'idempotent:' .. options.idempotency_key
      local first = redis.pcall('GET', known)
      if type(first) == 'string' and redis.call('EXISTS', prefix .. 'job:' .. first) == 1 then return {-3, first} end
      redis.call('SET', known, id, 'PX', digits(options.idempotency_ms))
    end
    if options.debounce_key then
      local pointer = prefix .. 'debounce:' .. options.debounce_key
      local earlier = redis.pcall('GET', pointer)
      if type(earlier) == 'string' and is_waiting(earlier) then id = earlier end
      redis.call('SET', pointer, id, 'PX', digits(math.max(due_ms - now_ms, 0) + 86400000))
    end
    if options.if_pending and redis.pcall('HGET', prefix .. 'job:' .. id, 'status') == 'ACTIVE' then return {-4, id} end
    return id
  end

  -- What the earlier life of an id left behind must not reach into the new one, the expiry first of all. Its batch and
  -- the jobs with its unique key must not wait for an end that never comes; unless the new life has the same batch or
  -- key, being sent again.
  local function forget_earlier_life(id, job, batch_id, unique_key)
    local seen = redis.call('HMGET', job, 'slots', 'parked_in', 'batch_id', 'job_unique_key')
    if seen[4] and seen[4] ~= unique_key then batch().release_unique(seen[4], id) end
    if seen[3] and seen[3] ~= batch_id then batch().leave_batch(id, job, true) end
    if seen[1] then flow().vacate(id, job, seen[1]) end
    if seen[2] then redis.pcall('ZREM', prefix .. 'parked:' .. seen[2], id) end
    local left_behind = {'completion_time', 'last_error', 'error_type', 'job_unique_key', 'trace_context',
      'worker_id', 'start_time', 'claimed_queue', 'claimed_score', 'cancel_requested',
      'waited_for', 'suspect', 'reserved_by', 'crashes', 'crash_history', 'traceback', 'slots', 'extras',
      'parked_in', 'boost_ms', 'attempts', 'progress', 'cursor', 'next', 'losses', 'loss_history', 'unknown_since_ms'}
    for _, option in ipairs(STORED_OPTIONS) do left_behind[#left_behind + 1] = option[1] end
    redis.call('HDEL', job, unpack(left_behind))
    redis.call('PERSIST', job)
    redis.call('DEL', prefix .. 'events:job:' .. id)
  end

  -- What few jobs have: a key for limits, a chain, a batch, a priority. Returns the head start in ms.
  local function write_options(id, job, options, is_due)
    for _, option in ipairs(STORED_OPTIONS) do
      local name = option[1]
      if options[name] ~= nil then redis.call('HSET', job, name, options[name]) end
    end
    if options.next then redis.call('HSET', job, 'next', options.next, 'extras', '1') end
    if options.batch_id then
      redis.call('HSET', job, 'extras', '1')
      local pending = prefix .. 'batch:' .. options.batch_id .. ':pending'
      -- An expiry for a producer that fails on the way; close_batch takes it off.
      if redis.call('SADD', pending, id) == 1 and redis.call('SCARD', pending) == 1 then
        redis.call('EXPIRE', pending, 2592000)
      end
    end
    -- Before its time nothing may start, so only what is due already can be given a head start.
    if not options.priority or not is_due then return 0 end
    local boost_ms = math.max(0, math.min(9, options.priority)) * PRIORITY_MS
    if boost_ms == 0 then return 0 end
    redis.call('HSET', job, 'boost_ms', digits(boost_ms))
    -- Half a millisecond tells a claim to look for it, which then need not ask every job.
    return boost_ms + 0.5
  end

  made = {due_after_unique = due_after_unique, read_options = read_options, choose_id = choose_id,
    forget_earlier_life = forget_earlier_life, write_options = write_options}
  return made
end

-- Store and queue the job whose arguments follow args[at]: id, function name, args (JSON), kwargs
-- (JSON), index of its queue (used by the caller), queue name as given, max retries, timeout (s),
-- result TTL (s), due ('' now, '+ms' from now, '@ms' absolute), unique key or '', trace context or '',
-- '1' when the producer chose the id, options (JSON, such as read_options takes) or ''.
-- Returns its due time in ms; with an id that is not the one asked for {due time, id}. Nothing is written for
-- -1 its key is not a hash   {-3, id} an idempotent call made that job before   {-4, id} it is running already
local function enqueue_job(args, at, queue, token, unique_ttl_seconds)
  local id, due, unique_key, trace, text = args[at + 1], args[at + 10], args[at + 11], args[at + 12], args[at + 14]
  local options, asked_id = nil, id
  local due_ms, due_iso = now_ms, now_iso
  if due ~= '' then
    local number = tonumber(string.sub(due, 2))
    due_ms = string.sub(due, 1, 1) == '+' and now_ms + number or math.max(0, number)
    due_iso = nil
  end
  if unique_key ~= '' or text ~= '' then
    local kind = redis.call('TYPE', prefix .. 'job:' .. id).ok
    if kind ~= 'hash' and kind ~= 'none' then return -1 end
  end
  if text ~= '' then
    options = seldom().read_options(text)
    local chosen = seldom().choose_id(id, options, due_ms)
    if type(chosen) == 'table' then return chosen end
    id = chosen
  end
  local job = prefix .. 'job:' .. id
  if options and options.debounce_max_ms then
    -- Put off again and again, it still runs at last.
    local since_ms = id ~= asked_id and tonumber(redis.call('HGET', job, 'debounced_since_ms') or '') or now_ms
    due_ms, due_iso = math.min(due_ms, math.max(now_ms, since_ms + options.debounce_max_ms)), nil
    redis.call('HSET', job, 'debounced_since_ms', digits(since_ms))
  end
  if unique_key ~= '' then
    local asked_ms = due_ms
    due_ms = seldom().due_after_unique(unique_key, id, due_ms, unique_ttl_seconds)
    if due_ms ~= asked_ms then due_iso = nil end
  end
  -- A chosen id may be queued elsewhere already: it moves. Ids that we made up are new.
  local old_queue = (args[at + 13] == '1' or id ~= asked_id) and redis.pcall('HGET', job, 'queue_name')
  if type(old_queue) == 'string' and home_queue(nil, old_queue) ~= queue then
    redis.pcall('ZREM', home_queue(nil, old_queue), id)
  end
  -- A small hash is searched from its beginning: in front is what is asked for most often.
  local new_fields = redis.pcall('HSET', job, 'attempt_token', token, 'status', 'PENDING',
    'function_name', args[at + 2], 'job_args', args[at + 3], 'job_kwargs', args[at + 4], 'enqueue_time', now_iso,
    'current_retries', '0', 'max_retries', args[at + 7], 'job_timeout_seconds', args[at + 8],
    'result_ttl_seconds', args[at + 9], 'queue_name', args[at + 6],
    'next_scheduled_run_time', due_iso or iso(due_ms * 1000), 'result', 'null', 'id', id)
  if type(new_fields) == 'table' then
    -- Out of memory must fail the whole call; only a key of the wrong type concerns this job alone.
    if not string.find(new_fields.err, 'WRONGTYPE', 1, true) then error(new_fields.err) end
    return -1
  end
  -- Fewer new fields than were written: the id was used before.
  if new_fields < 14 then seldom().forget_earlier_life(id, job, options and options.batch_id, unique_key) end
  if unique_key ~= '' then redis.call('HSET', job, 'job_unique_key', unique_key) end
  if trace ~= '' then redis.call('HSET', job, 'trace_context', trace) end
  local boost_ms = options and seldom().write_options(id, job, options, due_ms <= now_ms) or 0
  redis.call('ZADD', queue, due_ms - boost_ms, id)
  if due_ms > now_ms then wake_for(queue, id, due_ms) end
  return id == asked_id and due_ms or {due_ms, id}
end

local function read_options(text) return seldom().read_options(text) end

return {is_disabled = is_disabled, read_options = read_options, enqueue_job = enqueue_job, JOB_ARGUMENTS = JOB_ARGUMENTS}
