-- cancel_where: cancel the waiting jobs of one queue, or of one scope where they are parked, that fit a filter.
-- needs: context, wake, flow, enqueue, batch, settle
-- KEYS     1 queue, or a set of parked jobs
-- ARGV     1 key prefix   2 function or '' for any   3 due until (ms), '+inf' for all   4 entries to look at
--          5 entries to skip, which stayed in an earlier call   6 '1' = only count
--          7 queue that a parked job must be of, or ''
-- Returns  {jobs that fit, entries that stay, more to see 0/1}
local source, wanted_function, home = KEYS[1], ARGV[2], ARGV[7]
local most, skipped, only_count = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1'
local kind = redis.call('TYPE', source).ok
if kind ~= 'zset' then return {0, 0, 0} end
local page = redis.call('ZRANGEBYSCORE', source, '-inf', ARGV[3], 'WITHSCORES', 'LIMIT', skipped, most)
local scope, until_ms = string.sub(source, #prefix + #'parked:' + 1), tonumber(ARGV[3]) or math.huge
local cancelled, stays = 0, 0

-- An entry that was left behind, because an 0.7 producer has used the id again, is not the job.
local function is_parked(seen)
  return seen[9] == scope and (seen[8] == 'PENDING' or seen[8] == 'RETRYING') and home_queue(seen[6], seen[7]) == home
end

for i = 1, #page, 2 do
  local id, job = page[i], prefix .. 'job:' .. page[i]
  local seen = redis.pcall('HMGET', job, 'function_name', 'attempt_token', 'job_unique_key', 'result_ttl_seconds',
    'waited_for', 'claimed_queue', 'queue_name', 'status', 'parked_in', 'boost_ms')
  local fits = not seen.err and seen[1] and (wanted_function == '' or seen[1] == wanted_function)
    and seen[8] ~= 'ACTIVE' and (home == '' or is_parked(seen))
    -- A head start by priority makes a job look older than it is.
    and tonumber(page[i + 1]) + (tonumber(seen[10] or '') or 0) <= until_ms
  if fits then cancelled = cancelled + 1 end
  if fits and not only_count then
    redis.call('ZREM', source, id)
    redis.call('HSET', job, 'attempt_token', (seen[2] or '') .. '.cancelled')
    settle().mark_cancelled(id, tonumber(seen[4] or '') or 86400, seen[3], seen[5])
  else
    stays = stays + 1
  end
end
return {cancelled, stays, #page == most * 2 and 1 or 0}
