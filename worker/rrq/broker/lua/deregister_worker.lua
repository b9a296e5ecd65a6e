-- deregister_worker: a worker says goodbye.
-- needs: context, awaited, announce_end
-- With jobs still in hand (a thread that could not be stopped) the lease stays and ends by itself:
-- giving such a job to another worker now would run it twice at once.
-- KEYS     1 leases   2 active set of the worker   3 worker record   4 active workers
-- ARGV     1 key prefix   2 worker id   3 incarnation
-- Returns  jobs still in hand   -1 the id belongs to another process
local leases, active, record, active_workers = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id = ARGV[2]
local known = redis.pcall('HGET', record, 'incarnation')
if type(known) == 'string' and known ~= ARGV[3] then return -1 end
redis.call('DEL', prefix .. 'health:worker:' .. id)
redis.pcall('ZREM', active_workers, id)
local in_hand = call_or_repair('ZCARD', active)
if in_hand > 0 then
  announce_end(leases, id)
  return in_hand
end
call_or_repair('ZREM', leases, id)
redis.call('DEL', record, prefix .. 'cancel:' .. id, prefix .. 'control:' .. id)
await_no_more(id)
return 0
