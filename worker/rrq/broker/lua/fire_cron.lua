-- fire_cron: enqueue one tick of a cron entry, once in the whole fleet.
-- needs: context, wake, flow, enqueue, batch
-- KEYS     1 last fired ticks   2 queue
-- ARGV     1 key prefix   2 token   3 unique lock TTL (s)   4 digest of the entry   5 tick (ms)
--          then the fourteen arguments of the job
-- Returns  due time in ms   -1 the job key is not a hash   -2 this tick has fired already
--          -3 by Redis's clock the tick is still ahead   -4 the unique lock of the entry is held
--          -5 its function is disabled
local last, queue, digest, tick_ms = KEYS[1], KEYS[2], ARGV[4], tonumber(ARGV[5])
local FIRST = 5
local fired_ms = tonumber(call_or_repair('HGET', last, digest) or '')
-- A tick of the day after tomorrow cannot have fired, whatever Redis says; it would silence the entry for good.
if fired_ms and fired_ms < now_ms + 86400000 and tick_ms <= fired_ms then return -2 end
if tick_ms > now_ms then return -3 end
local refusal = wrong_queue({queue})
if refusal then return refusal end
redis.call('HSET', last, digest, ARGV[5])
local unique_key = ARGV[FIRST + 11]
if unique_key ~= '' and redis.call('EXISTS', prefix .. 'lock:unique:' .. unique_key) == 1 then return -4 end
if enqueue().is_disabled(ARGV[FIRST + 2]) then return -5 end
local due_ms = enqueue().enqueue_job(ARGV, FIRST, queue, ARGV[2], tonumber(ARGV[3]))
if due_ms >= 0 then wake(queue, 1) end
announce(queue)
return due_ms
