-- flow: let jobs start as pauses and limits allow, and keep those that may not out of the way.
-- needs: context, wake
-- A job that may not start is taken out of its queue, so that no claim meets it twice, and comes back when another job
-- ends or its time has come. A scope is what a limit counts in: f:<function>, k:<function>:<key> (a colon in the function
-- as %3A) or q:<queue>. A running job is a member of slots:<scope>, a blocked one of parked:<scope>.
local PAUSES, LIMITS, OVERRIDES = prefix .. 'pauses', prefix .. 'limits', prefix .. 'limits:override'
-- Scope -> when to look at it again, for times that the end of no job announces: a rate, or a slot that got lost.
local PARKED = prefix .. 'parked'

-- A hash of JSON objects as a table; an entry that cannot be read has no effect.
local function read_objects(key, into)
  local entries = redis.pcall('HGETALL', key)
  for i = 1, #entries, 2 do
    local is_json, value = pcall(cjson.decode, entries[i + 1])
    if is_json and type(value) == 'table' then into[entries[i]] = value end
  end
  return into
end

local pauses = read_objects(PAUSES, {})
-- What people set at run time wins over what applications declare.
local limits = read_objects(OVERRIDES, read_objects(LIMITS, {}))

local has_pauses = next(pauses) ~= nil
local function is_paused(target) return pauses[target] ~= nil end
local function limit_of(target) return limits[target] end
local function paused_targets()
  local targets = {}
  for target in pairs(pauses) do targets[#targets + 1] = target end
  return targets
end

local LOOK_AGAIN_MS = 30000
-- How many jobs to unblock where a slot stayed free although jobs wait for it, and how soon to look again then.
local EAGERLY, LOOK_SOON_MS = 100, 1000
-- How many parked entries to look at in one go; most of them may have lost their job, or wait for a person.
local MOST_LOOKED_AT = 1000
-- Larger arguments are not decoded for the key of a limit; such jobs share one key.
local LARGEST_ARGUMENTS = 1000000

local function positive(value)
  local number = tonumber(value)
  if number and number >= 0 and number < 2 ^ 52 then return number end
end

-- Redis refuses an expiry that its clock cannot hold; ten years are as good as for ever.
local LONGEST_MS = 315360000000

-- How many may start now by the rate of a limit, and when the next may if none does. With a burst it is a bucket that
-- fills evenly; without, a window that slides: never more than `rate` starts in any `per_seconds`. What was noted
-- further ahead than such a time reaches was noted before the clock was set back, and delays no job.
local room_by_scope = {}
local function rate_room(scope, limit)
  local room = room_by_scope[scope]
  if room then return room.starts, room.ready_ms end
  local rate, burst, key = positive(limit.rate), positive(limit.burst), prefix .. 'rate:' .. scope
  local span_ms = math.max(1, math.min((positive(limit.per_seconds) or 1) * 1000, LONGEST_MS))
  -- A start that was noted before the clock was set back may count for two spans from now.
  room = {span_ms = span_ms, keep_ms = 2 * span_ms, burst = burst}
  if burst then
    room.keep_ms = rate > 0 and math.min(burst * span_ms / rate, LONGEST_MS) or LONGEST_MS
    local seen = redis.pcall('HMGET', key, 'tokens', 'at_ms')
    local tokens, at_ms = tonumber(seen[1] or ''), tonumber(seen[2] or '')
    if not tokens or not at_ms or at_ms > now_ms + room.keep_ms then tokens, at_ms = burst, now_ms end
    room.tokens = math.max(0, math.min(burst, tokens + math.max(0, now_ms - at_ms) * rate / span_ms))
    room.starts = math.floor(room.tokens)
    local missing = 1 - room.tokens + room.starts
    room.ready_ms = now_ms + (rate > 0 and math.min(math.ceil(missing * span_ms / rate), LONGEST_MS) or span_ms)
  else
    local first, last = '(' .. digits(now_ms - span_ms), digits(now_ms + span_ms)
    local oldest = redis.pcall('ZRANGEBYSCORE', key, first, last, 'WITHSCORES', 'LIMIT', 0, 1)
    room.starts = rate - (tonumber(redis.pcall('ZCOUNT', key, first, last)) or 0)
    room.ready_ms = math.min(tonumber(oldest[2] or '') or now_ms, now_ms) + span_ms + 1
  end
  room_by_scope[scope] = room
  return room.starts, room.ready_ms
end

-- A slot is worth as much as the active entry behind it: one that an ended job did not give back blocks no job.
local function drop_stale_slots(scope)
  local key, dropped = prefix .. 'slots:' .. scope, 0
  for _, id in ipairs(redis.call('SRANDMEMBER', key, 100)) do
    local seen = redis.pcall('HMGET', prefix .. 'job:' .. id, 'status', 'worker_id')
    if seen.err or seen[1] ~= 'ACTIVE' or not seen[2]
      or type(redis.pcall('ZSCORE', prefix .. 'active:jobs:' .. seen[2], id)) ~= 'string' then
      dropped = dropped + redis.call('SREM', key, id)
    end
  end
  return dropped
end

local free_by_scope = {}
local function free_slots(scope, most)
  local free = free_by_scope[scope]
  if not free then
    free = most - call_or_repair('SCARD', prefix .. 'slots:' .. scope)
    if free <= 0 and most > 0 then free = free + drop_stale_slots(scope) end
    free_by_scope[scope] = free
  end
  return free
end

-- A limit that got a burst, or lost it, counts in another way; what was counted before says nothing any more.
local function count_start(command, key, ...)
  if type(redis.pcall(command, key, ...)) == 'table' then
    redis.call('DEL', key)
    redis.call(command, key, ...)
  end
end

local function note_start(scope, token)
  local room, key = room_by_scope[scope], prefix .. 'rate:' .. scope
  room.starts = room.starts - 1
  if room.burst then
    room.tokens = room.tokens - 1
    count_start('HSET', key, 'tokens', room.tokens, 'at_ms', digits(now_ms))
  else
    count_start('ZADD', key, now_ms, token)
    redis.call('ZREMRANGEBYSCORE', key, '-inf', digits(now_ms - room.span_ms))
    redis.call('ZREMRANGEBYSCORE', key, '(' .. digits(now_ms + room.span_ms), '+inf')
  end
  redis.call('PEXPIRE', key, digits(math.max(room.keep_ms, 1000)))
end

-- The scope of one key of a function, and the function of a scope. A colon in the name of a function must not be taken
-- for the one that ends it: keys are what tenants choose, and must not reach into another function.
local ESCAPES = {['%'] = '%25', [':'] = '%3A'}
local function keyed_prefix(name) return 'k:' .. (string.gsub(name, '[%%:]', ESCAPES)) .. ':' end

local function function_of(scope)
  if string.sub(scope, 1, 2) == 'f:' then return string.sub(scope, 3) end
  local escaped = string.match(scope, '^k:([^:]*):')
  return escaped and (string.gsub(string.gsub(escaped, '%%3A', ':'), '%%25', '%%'))
end

-- What the limit of a function comes to, worked out once in a call and not for every job: nil when it has none, else
-- {limit, most = how many may run, in the order of `names` below, own, keyed_prefix or nil, is_plain_key, position}
local plans = {}
local function plan_of(name)
  local plan = plans[name]
  if plan ~= nil then return plan or nil end
  local limit = limits['function:' .. name]
  plan = limit and {limit = limit, most = {}, own = 'f:' .. name} or false
  if limit then
    local per_key, concurrency = positive(limit.per_key), positive(limit.concurrency)
    if per_key then plan.most[1] = per_key end
    if concurrency then plan.most[#plan.most + 1] = concurrency end
    plan.counts_key, plan.counts_own = per_key ~= nil, concurrency ~= nil
    plan.is_rated, plan.is_key_rated = positive(limit.rate) ~= nil, limit.per_key_rate == true
    if plan.counts_key or plan.is_key_rated then plan.keyed_prefix = keyed_prefix(name) end
    plan.is_plain_key = type(limit.key) == 'string' and string.match(limit.key, '^[%w_]+$') ~= nil
    plan.position = tonumber(limit.key_position)
  end
  plans[name] = plan
  return plan or nil
end

local function decoded(text)
  local is_json, value = pcall(cjson.decode, text)
  return is_json and type(value) == 'table' and value or {}
end

local function argument(plan, seen)
  local args, key = seen[2], plan.limit.key
  local size = #(args or '') + #(seen[3] or '') + #(seen[4] or '')
  if size > LARGEST_ARGUMENTS then return nil end
  for i = 3, 4 do
    -- Most jobs have no such argument by name, and need no decoding to tell. JSON may spell other letters in its own way.
    if key ~= nil and seen[i] and (not plan.is_plain_key or string.find(seen[i], key, 1, true)) then
      local value = decoded(seen[i])[key]
      if value ~= nil then return value end
    end
  end
  if plan.position and args then return decoded(args)[plan.position + 1] end
end

-- What tells apart the jobs of one function under a limit per key: what the producer said, else an argument. `seen` is
-- what the caller has read of that already, in the order of the fields here, or nil.
local function key_of(job, plan, seen)
  seen = seen or redis.call('HMGET', job, 'limit_key', 'job_args', 'job_kwargs', 'job_params')
  if seen[1] then return seen[1] end
  local value = argument(plan, seen)
  if type(value) == 'number' then return string.format('%.17g', value) end
  return type(value) == 'string' and value or type(value) == 'boolean' and tostring(value) or ''
end

-- The scopes that a job counts in: {names = those whose slots it takes, most = how many each of them has, rate = scope or
-- nil, limit, texts = what was made of them before, if others count alike}; nil when it is free. That of its key comes
-- first: what waits for its own key must not stand in line before those that wait for the function.
local function scopes_of(job, name, seen)
  local plan = plan_of(name)
  if not plan then return nil end
  if plan.scopes then return plan.scopes end
  local keyed = plan.keyed_prefix and plan.keyed_prefix .. key_of(job, plan, seen)
  local names = {}
  if plan.counts_key then names[1] = keyed end
  if plan.counts_own then names[#names + 1] = plan.own end
  local rate = plan.is_rated and (plan.is_key_rated and keyed or plan.own) or nil
  local scopes = {names = names, most = plan.most, rate = rate, limit = plan.limit}
  if not keyed then plan.scopes, scopes.texts = scopes, {} end
  return scopes
end

-- The scope that keeps a job from starting now, and when to look again; nil when it may start.
local function blocked_by(name, scopes)
  if has_pauses and is_paused('function:' .. name) then return 'f:' .. name, now_ms + LOOK_AGAIN_MS end
  if not scopes then return nil end
  for i, scope in ipairs(scopes.names) do
    if free_slots(scope, scopes.most[i]) <= 0 then return scope, now_ms + LOOK_AGAIN_MS end
  end
  if scopes.rate then
    local starts, ready_ms = rate_room(scopes.rate, scopes.limit)
    if starts < 1 then return scopes.rate, ready_ms end
  end
end

-- How many jobs of a queue may start now: all of them, or what its pause and its limit leave; and when more may.
local function queue_room(queue)
  local name = short_name(queue)
  if is_paused('queue:' .. name) then return 0 end
  local limit, scope, room, ready_ms = limits['queue:' .. name], 'q:' .. name, math.huge, nil
  if not limit then return room end
  if positive(limit.concurrency) then room = free_slots(scope, positive(limit.concurrency)) end
  if positive(limit.rate) then
    local starts, next_ms = rate_room(scope, limit)
    if starts < room then room = starts end
    if starts < 1 then ready_ms = next_ms end
  end
  return math.max(0, room), ready_ms
end

-- Count a job that starts from a queue with a limit. Returns the scope if that is to be given back at its end.
local queue_limits = {}
local function enter_queue(queue, token)
  local known = queue_limits[queue]
  if known == nil then
    local name = short_name(queue)
    local limit = limits['queue:' .. name]
    known = limit and {limit = limit, scope = 'q:' .. name} or false
    queue_limits[queue] = known
  end
  if not known then return nil end
  if positive(known.limit.rate) then
    rate_room(known.scope, known.limit)
    note_start(known.scope, token)
  end
  return positive(known.limit.concurrency) and known.scope or nil
end

-- The extras of a job that has slots now, from those that it had.
local function with_slots(extras) return (not extras or extras == ONLY_SLOTS) and ONLY_SLOTS or '1s' end

-- By scope, who takes a slot in this call and is not noted yet: one command for a scope, not one for a job.
local entering = {}

local function enter(scope, id)
  local members = entering[scope]
  if not members then
    members = {}
    entering[scope] = members
  end
  members[#members + 1] = id
  if free_by_scope[scope] then free_by_scope[scope] = free_by_scope[scope] - 1 end
end

-- Take the slots of a job that starts, whether or not they are free. Returns what its hash has to say of them (JSON), or
-- nil. The caller writes that, and sees to it that the slots are noted.
local FREE = {names = {}, texts = {}}
local function occupy(id, scopes, queue_scope)
  scopes = scopes or FREE
  for _, scope in ipairs(scopes.names) do enter(scope, id) end
  if queue_scope then enter(queue_scope, id) end
  local text = scopes.texts and scopes.texts[queue_scope or '']
  if text then return text end
  local taken = {unpack(scopes.names)}
  taken[#taken + 1] = queue_scope
  if #taken == 0 then return nil end
  text = cjson.encode(taken)
  if scopes.texts then scopes.texts[queue_scope or ''] = text end
  return text
end

local function note_slots()
  for scope, members in pairs(entering) do call_or_repair('SADD', prefix .. 'slots:' .. scope, unpack(members)) end
  entering = {}
end

-- Put the first parked jobs of a scope back into their queues. Returns how many, whether it stopped before the last, and
-- how many entries it looked at.
local function unblock(scope, most)
  local parked, kinds, unblocked_by_queue = prefix .. 'parked:' .. scope, {}, {}
  local count, looked, stay = 0, 0, 0
  local function see_to(id, score)
    local job = prefix .. 'job:' .. id
    local seen = redis.pcall('HMGET', job, 'parked_in', 'status', 'claimed_queue', 'queue_name')
    local queue = not seen.err and home_queue(seen[3], seen[4])
    if queue and seen[1] == scope and (seen[2] == 'PENDING' or seen[2] == 'RETRYING') then
      if kinds[queue] == nil then kinds[queue] = not wrong_queue({queue}) end
      -- A queue key that holds something else is for a person to see to; until then its jobs are safe here.
      if not kinds[queue] then
        stay = stay + 1
        return
      end
      redis.call('HDEL', job, 'parked_in')
      local named = home_queue(nil, seen[4])
      -- An 0.7 producer, which knows of no parking, may have queued the id elsewhere meanwhile. That entry stands.
      if named == queue or type(redis.pcall('ZSCORE', named, id)) ~= 'string' then
        redis.call('ZADD', queue, 'NX', score, id)
        unblocked_by_queue[queue] = (unblocked_by_queue[queue] or 0) + 1
        count = count + 1
      end
    end
    redis.call('ZREM', parked, id)
  end
  local is_cut = most > 0
  while count < most and looked < MOST_LOOKED_AT do
    local page = call_or_repair('ZRANGE', parked, stay, stay + math.min(most - count, 100) - 1, 'WITHSCORES')
    is_cut = #page > 0
    if not is_cut then break end
    for i = 1, #page, 2 do see_to(page[i], page[i + 1]) end
    looked = looked + #page / 2
  end
  for queue, number in pairs(unblocked_by_queue) do
    wake(queue, number)
    announce(queue)
  end
  if redis.call('EXISTS', parked) == 0 then call_or_repair('ZREM', PARKED, scope) end
  return count, is_cut, looked
end

-- How many jobs of a scope may start now, and when to ask again if not all of them may; true if a rate decides that.
local function scope_room(scope)
  local name = function_of(scope)
  if not name then return math.huge, now_ms, false end
  if is_paused('function:' .. name) then return 0, now_ms + LOOK_AGAIN_MS, false end
  local limit, room, look_ms = limits['function:' .. name] or {}, math.huge, now_ms
  local is_own = string.sub(scope, 1, 2) == 'f:'
  local most = positive(is_own and limit.concurrency or not is_own and limit.per_key or nil)
  if most then
    room = free_slots(scope, most)
    if room <= 0 then look_ms = now_ms + LOOK_AGAIN_MS end
  end
  local is_rated = positive(limit.rate) ~= nil and is_own == (limit.per_key_rate ~= true)
  if is_rated then
    local starts, ready_ms = rate_room(scope, limit)
    if starts < room then room, look_ms = starts, ready_ms end
  end
  return room, look_ms, is_rated
end

-- So many more may start. Jobs that still wait are looked at by time, too, even if another program deleted that list.
local function unblock_next(scope, number)
  if redis.call('EXISTS', prefix .. 'parked:' .. scope) == 0 then return false end
  local count = unblock(scope, math.max(0, math.min(scope_room(scope), number)))
  if redis.call('EXISTS', prefix .. 'parked:' .. scope) == 1 then
    call_or_repair('ZADD', PARKED, 'NX', digits(now_ms + LOOK_AGAIN_MS), scope)
  end
  return count > 0
end

-- Take a job that may not start out of its queue. Returns true when another one came into a queue for it: what is let
-- in by its function and then held by its key leaves its place to the next.
local function park(id, job, name, scope, queue, score, look_ms)
  call_or_repair('ZADD', prefix .. 'parked:' .. scope, score, id)
  redis.call('HSET', job, 'parked_in', scope, 'claimed_queue', queue)
  -- An 0.7 producer leaves the expiry of an earlier life on an id used again.
  redis.call('PERSIST', job)
  call_or_repair('ZADD', PARKED, 'LT', digits(look_ms), scope)
  -- Before another job is unblocked, or it might be this one.
  redis.call('ZREM', queue, id)
  local own = 'f:' .. name
  return scope ~= own and unblock_next(own, 1)
end

-- Look at scopes whose time has come, and unblock so many jobs in all. Returns when the time of the next one comes, or
-- nil, and how many were unblocked.
local function admit_parked(most_scopes, most_jobs)
  local back = 0
  for _, scope in ipairs(call_or_repair('ZRANGEBYSCORE', PARKED, '-inf', now_ms, 'LIMIT', 0, most_scopes)) do
    if most_jobs <= 0 then break end
    local room, look_ms, is_rated = scope_room(scope)
    local most = room
    if room > 0 and room < math.huge and not is_rated then
      -- Those unblocked before may lie in a queue that no worker serves. Claims block again what is too much.
      most, look_ms = math.max(room, EAGERLY), now_ms + LOOK_SOON_MS
    end
    local count, is_cut, looked = unblock(scope, math.max(0, math.min(most, most_jobs)))
    most_jobs = most_jobs - looked
    back = back + count
    if redis.call('ZSCORE', PARKED, scope) then
      if is_cut and count < most then look_ms = now_ms elseif look_ms <= now_ms then look_ms = now_ms + LOOK_AGAIN_MS end
      redis.call('ZADD', PARKED, digits(look_ms), scope)
    end
  end
  return tonumber(redis.call('ZRANGE', PARKED, 0, 0, 'WITHSCORES')[2] or ''), back
end

-- True when a job that was taken for running waits after all, in its queue or parked: an 0.7 producer, which knows no
-- token, has enqueued the id again.
local function is_queued_again(id, job, queue)
  if type(redis.pcall('ZSCORE', queue, id)) == 'string' then return true end
  local scope = redis.pcall('HGET', job, 'parked_in')
  return type(scope) == 'string' and type(redis.pcall('ZSCORE', prefix .. 'parked:' .. scope, id)) == 'string'
end

-- By scope, who leaves a slot in this call, in the order in which the scopes were first met.
local leaving, leaving_scopes = {}, {}
-- unpack and the Lua stack bear a few thousand.
local MOST_AT_ONCE = 1000

-- Give back the slots of a job that has ended or goes back. They are free, and who comes next is seen to, with
-- unblock_others: only when all that end in a call have done so is it known how many may.
local scopes_by_text = {}
local function free_up(id, job, slots_text)
  redis.call('HDEL', job, 'slots')
  local scopes = scopes_by_text[slots_text]
  if not scopes then
    scopes = decoded(slots_text)
    scopes_by_text[slots_text] = scopes
  end
  for _, scope in ipairs(scopes) do
    if type(scope) == 'string' then
      local ids = leaving[scope]
      if not ids then
        ids = {}
        leaving[scope] = ids
        leaving_scopes[#leaving_scopes + 1] = scope
      end
      ids[#ids + 1] = id
    end
  end
end

local function remove_slots(scope, ids)
  local freed = 0
  for first = 1, #ids, MOST_AT_ONCE do
    local last = math.min(first + MOST_AT_ONCE - 1, #ids)
    freed = freed + call_or_repair('SREM', prefix .. 'slots:' .. scope, unpack(ids, first, last))
  end
  if free_by_scope[scope] then free_by_scope[scope] = free_by_scope[scope] + freed end
  return freed
end

-- Mostly no job waits, and that is asked once for all scopes and not once for each.
local function does_anyone_wait(scopes)
  local keys = {}
  for _, scope in ipairs(scopes) do
    keys[#keys + 1] = prefix .. 'parked:' .. scope
    if #keys == MOST_AT_ONCE then
      if redis.call('EXISTS', unpack(keys)) > 0 then return true end
      keys = {}
    end
  end
  return #keys > 0 and redis.call('EXISTS', unpack(keys)) > 0
end

local function unblock_others()
  local scopes, freed = leaving_scopes, {}
  for _, scope in ipairs(scopes) do freed[scope] = remove_slots(scope, leaving[scope]) end
  leaving, leaving_scopes = {}, {}
  local is_anyone_waiting = does_anyone_wait(scopes)
  for _, scope in ipairs(scopes) do
    if freed[scope] > 0 and string.sub(scope, 1, 2) == 'q:' then
      wake(prefix .. 'queue:' .. string.sub(scope, 3), freed[scope])
    elseif freed[scope] > 0 and is_anyone_waiting then unblock_next(scope, freed[scope]) end
  end
end

local function vacate(id, job, slots_text)
  free_up(id, job, slots_text)
  unblock_others()
end

-- As if it had started: what it takes is not free for those behind it, but nothing is written.
local function pretend(scopes)
  for i, scope in ipairs(scopes.names) do free_by_scope[scope] = free_slots(scope, scopes.most[i]) - 1 end
  if scopes.rate then room_by_scope[scopes.rate].starts = room_by_scope[scopes.rate].starts - 1 end
end

return {is_paused = is_paused, limit_of = limit_of, paused_targets = paused_targets, read_objects = read_objects,
  positive = positive, rate_room = rate_room, note_start = note_start, keyed_prefix = keyed_prefix,
  scopes_of = scopes_of, blocked_by = blocked_by, queue_room = queue_room, enter_queue = enter_queue,
  occupy = occupy, with_slots = with_slots, note_slots = note_slots, park = park, admit_parked = admit_parked, free_up = free_up,
  unblock_others = unblock_others, vacate = vacate, pretend = pretend, is_queued_again = is_queued_again}
