-- delete_dead_letters: forget dead-lettered jobs for good.
-- needs: context
-- KEYS     1 dead letter list
-- ARGV     1 key prefix   2… ids
-- Returns  how many were deleted; an id that was enqueued again meanwhile only leaves the list
local deleted = 0
for i = 2, #ARGV do
  if redis.pcall('LREM', KEYS[1], -1, ARGV[i]) == 1 then
    local job = prefix .. 'job:' .. ARGV[i]
    if redis.pcall('HGET', job, 'status') == 'FAILED' then redis.call('DEL', job, prefix .. 'events:job:' .. ARGV[i]) end
    deleted = deleted + 1
  end
end
return deleted
