-- statistics: what happened in this minute and what ended last, so that charts and lists need no search.
-- needs: context
local MINUTE = prefix .. 'stats:' .. digits(math.floor(now_ms / 60000))
local RECENT, MOST_RECENT, RECENT_SLACK = prefix .. 'recent', 1000, 100

-- A day and an hour: yesterday at this time is the question most often asked of a chart.
local KEPT_SECONDS = 90000

-- How many jobs a queue gave, and how long they had waited. One reading and one writing: this is part of every claim.
local function count_started(queue, started, wait_ms, longest_ms)
  local name = short_name(queue)
  local started_field, wait_field, longest_field = name .. '|started', name .. '|wait_ms', name .. '|wait_max_ms'
  local seen = sure('HMGET', MINUTE, started_field, wait_field, longest_field)
  -- A foreign hand may have written anything; what is no number starts anew.
  local function so_far(n)
    local number = tonumber(seen[n] or '')
    return number and number < 2 ^ 52 and number or 0
  end
  redis.call('HSET', MINUTE, started_field, digits(so_far(1) + started), wait_field, digits(so_far(2) + wait_ms),
    longest_field, digits(math.max(so_far(3), longest_ms)))
  if not seen[1] then redis.call('EXPIRE', MINUTE, KEPT_SECONDS) end
end

-- How attempts ended; by queue only where that is rare enough to be worth the question.
local function count_ended(outcome, number, queue)
  local field = (queue and short_name(queue) or '') .. '|' .. outcome
  if try('HINCRBY', MINUTE, field, number) == number then redis.call('EXPIRE', MINUTE, KEPT_SECONDS) end
end

local function note_recent(ids)
  if #ids == 0 then return end
  -- Cut now and then, and not by every call.
  if sure('LPUSH', RECENT, unpack(ids)) > MOST_RECENT + RECENT_SLACK then
    redis.call('LTRIM', RECENT, 0, MOST_RECENT - 1)
  end
end

return {count_started = count_started, count_ended = count_ended, note_recent = note_recent}
