-- wake: announce to idle workers and to watchers that a queue has changed.

-- Hand out at most `count` tokens, never more than there are workers waiting: a surplus token would
-- only cost a worker an empty poll later.
local function wake(queue, count)
  local waiting = call_or_repair('ZCOUNT', prefix .. 'waiting:' .. queue, now_ms, '+inf')
  if waiting == 0 then return end
  local tokens = prefix .. 'wake:' .. queue
  local missing = math.min(count, waiting) - call_or_repair('LLEN', tokens)
  for _ = 1, missing do redis.call('RPUSH', tokens, '1') end
  if missing > 0 then redis.call('PEXPIRE', tokens, 5000) end
end

-- A deferred job matters to sleepers only when it is the new head: then one of them, waking up,
-- learns the earlier due time and sleeps until exactly then.
local function wake_for(queue, id, due_ms)
  if due_ms <= now_ms or redis.call('ZRANGE', queue, 0, 0)[1] == id then wake(queue, 1) end
end

-- Operators and live views listen on one channel. At most every 50 ms per queue, and through pcall:
-- a producer whose ACL lacks the channel must not fail because of an onlooker.
local function announce(queue)
  local fresh = redis.pcall('SET', prefix .. 'notified:' .. queue, '1', 'PX', 50, 'NX')
  if fresh and fresh.ok then redis.pcall('PUBLISH', prefix .. 'notify', queue) end
end
