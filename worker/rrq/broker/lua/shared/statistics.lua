-- statistics: how attempts ended in this minute and what ended last, so that charts and lists need no search.
-- needs: context, minute
-- What started is counted by claim_jobs.

-- By queue only where that is rare enough to be worth the question.
local function count_ended(outcome, number, queue)
  local field = (queue and short_name(queue) or '') .. '|' .. outcome
  if pcall_or_repair('HINCRBY', MINUTE, field, number) == number then
    redis.call('EXPIRE', MINUTE, STATISTICS_SECONDS)
  end
end

local function note_recent(ids)
  if #ids == 0 then return end
  local RECENT, MOST_RECENT, SLACK = prefix .. 'recent', 1000, 100
  -- Cut now and then, and not by every call.
  if call_or_repair('LPUSH', RECENT, unpack(ids)) > MOST_RECENT + SLACK then
    redis.call('LTRIM', RECENT, 0, MOST_RECENT - 1)
  end
end
