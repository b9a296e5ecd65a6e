-- close_batch: all jobs of a batch are queued; from now on its end is the end of the last of them.
-- needs: context, wake, flow, enqueue, batch
-- KEYS     1 batch   2 ids of its jobs that have not ended
-- ARGV     1 key prefix
-- Returns  how many jobs have not ended; 0 when the callback has been queued by this call
-- The first write is one that Redis allows when it is out of memory. By then all jobs are queued.
redis.call('HDEL', KEYS[1], 'open')
-- A queued job has no expiry, so its batch must have none either: it may be due, or held back, for longer than any.
if not redis.call('HGET', KEYS[1], 'ended') then
  redis.call('PERSIST', KEYS[1])
  redis.call('PERSIST', KEYS[2])
end
batch().end_batch(KEYS[1])
return redis.call('SCARD', KEYS[2])
