-- batch: what follows from the end of a job: its unique key is free, and the next job of its chain and the callback of
-- its batch are enqueued.
-- needs: context, wake, flow, enqueue
-- The very script that ends the job does all of it, so that no crash comes between.

-- Whether these are the arguments of a job that enqueue_job can take. Another program may have written them.
local function is_kept_job(args)
  for n = 1, enqueue().JOB_ARGUMENTS do
    if type(args[n]) ~= 'string' then return false end
  end
  local due = args[10]
  return args[1] ~= '' and (due == '' or string.find(due, '^[+@]%-?%d+$') ~= nil)
    and (args[14] == '' or enqueue().read_options(args[14]) ~= nil)
end

-- Enqueue a job whose arguments were kept as JSON. The script works around a job key or a queue of another type, as no
-- caller waits for an error.
local function enqueue_kept(args, token)
  if not is_kept_job(args) then
    redis.log(redis.LOG_WARNING, 'rrq: what was to follow on ' .. token .. ' is no job, and is left out')
    return
  end
  local queue = home_queue(nil, args[6])
  if wrong_queue({queue}) then
    redis.log(redis.LOG_WARNING, 'rrq: ' .. queue .. ' holds no queue; job ' .. args[1] .. ' goes to the default one')
    queue = prefix .. 'queue:default'
    if wrong_queue({queue}) then set_key_aside(queue) end
  end
  local unique_ttl_seconds = tonumber(args[15] or '') or 21600
  local reply = enqueue().enqueue_job(args, 0, queue, token, unique_ttl_seconds)
  if reply == -1 then
    set_key_aside(prefix .. 'job:' .. args[1])
    reply = enqueue().enqueue_job(args, 0, queue, token, unique_ttl_seconds)
  end
  local due_ms = type(reply) == 'table' and reply[1] or reply
  if due_ms >= 0 and due_ms <= now_ms then wake(queue, 1) end
  announce(queue)
end

-- The first job of a chain is done: its follow-up is queued, with the rest of the chain and, if wished, the result.
local function follow_up(id, chain_text, result, token)
  local is_json, chain = pcall(cjson.decode, chain_text)
  if not is_json or type(chain) ~= 'table' or type(chain[1]) ~= 'table' then return end
  local first = table.remove(chain, 1)
  local is_readable, options = pcall(cjson.decode, first[14] ~= '' and first[14] or '{}')
  if not is_readable or type(options) ~= 'table' then options = {} end
  if options.takes_result and type(first[3]) == 'string' then
    first[3] = '[' .. result .. (first[3] == '[]' and '' or ',') .. string.sub(first[3], 2)
  end
  options.parent_id = id
  if #chain > 0 then options.next = chain end
  local is_writable, text = pcall(cjson.encode, options)
  first[14] = is_writable and text or ''
  enqueue_kept(first, token .. '.next')
end

-- A deferred duplicate carries the unique key without owning the lock; only the owner frees it.
local function release_unique(unique_key, id)
  if not unique_key or unique_key == '' then return end
  local lock = prefix .. 'lock:unique:' .. unique_key
  if redis.pcall('GET', lock) == id then redis.call('DEL', lock) end
end

local function end_batch(batch)
  if redis.call('EXISTS', batch .. ':pending') == 1 or redis.pcall('HGET', batch, 'open') == '1' then return end
  if redis.pcall('HSETNX', batch, 'ended', iso(now_us)) ~= 1 then return end
  redis.call('EXPIRE', batch, 604800)
  local callback = redis.call('HGET', batch, 'callback')
  local is_json, args = pcall(cjson.decode, callback or '')
  if is_json and type(args) == 'table' then enqueue_kept(args, 'b.' .. batch) end
end

-- A job has ended for good: its batch waits for one less, once, however often the job is run again.
local function leave_batch(id, job, has_failed)
  local batch_id = redis.pcall('HGET', job, 'batch_id')
  if type(batch_id) ~= 'string' then return end
  local batch = prefix .. 'batch:' .. batch_id
  if redis.pcall('SREM', batch .. ':pending', id) ~= 1 then return end
  if has_failed then count(batch, 'failed', 1) end
  end_batch(batch)
end

return {follow_up = follow_up, release_unique = release_unique, end_batch = end_batch, leave_batch = leave_batch}
