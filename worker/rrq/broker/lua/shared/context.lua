-- context: what every script starts from: the key prefix and one reading of Redis's own clock.
-- Client clocks differ from each other and jump; no decision about due times or leases uses them.
local prefix = ARGV[1]

-- What most calls do without is made when it is first asked for.
local function once(make)
  local made
  return function()
    made = made or make()
    return made
  end
end

local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)

-- Lua prints a large number as 1.7e+12; Redis and Python want all of its digits.
local function digits(number) return string.format('%.0f', number) end

-- A time in microseconds as ISO 8601 in UTC; Lua inside Redis has no os.date. Days are counted in
-- years that begin in March, so that the leap day comes last and every other month is regular.
local function iso(us, suffix)
  local seconds = math.floor(us / 1000000)
  local days = math.floor(seconds / 86400)
  local of_day = seconds - days * 86400
  local shifted = days + 719468
  local era = math.floor(shifted / 146097)
  local of_era = shifted - era * 146097
  local year = math.floor((of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524)
    - math.floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * of_year + 2) / 153)
  local day = of_year - math.floor((153 * month + 2) / 5) + 1
  month = month < 10 and month + 3 or month - 9
  year = year + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06d%s', year, month, day,
    math.floor(of_day / 3600), math.floor(of_day / 60) % 60, of_day % 60, us % 1000000,
    suffix or 'Z')
end

-- A key of RRQ that holds a value of another type, which only another program can have written, would stop every
-- script that reads it, and with one worker the whole fleet. The script renames the key and keeps it for a week, for a
-- person to look at; what belongs there is built up anew.
local function set_key_aside(key)
  local aside = key .. ':unreadable'
  if redis.call('EXISTS', aside) == 1 then aside = aside .. ':' .. digits(now_us) end
  redis.log(redis.LOG_WARNING, 'rrq: ' .. key .. ' is of the wrong type and was moved to ' .. aside)
  redis.call('RENAME', key, aside)
  redis.call('EXPIRE', aside, 604800)
  return aside
end

-- Like redis.pcall, but a key of the wrong type is set aside first.
local function pcall_or_repair(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply.err or not string.find(reply.err, 'WRONGTYPE', 1, true) then
    return reply
  end
  set_key_aside(key)
  return redis.pcall(command, key, ...)
end

-- Like redis.call, but a key of the wrong type is set aside first. The first access to a key in a script uses this.
local function call_or_repair(command, key, ...)
  local reply = pcall_or_repair(command, key, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  return redis.call(command, key, ...)
end

-- Add to a running total; one that is no number starts anew.
local function count(key, field, by)
  if type(pcall_or_repair('HINCRBY', key, field, by)) == 'table' then redis.call('HSET', key, field, by) end
end

-- The field `extras` of a job says what there is to see to at its end: '1' a batch or a chain, 's' slots, '1s' both. One
-- field for all of them, as most jobs have none, and a field that is not there is searched for the longest.
local ONLY_SLOTS = 's'

-- What the token of an attempt ends in once its outcome is stored.
local OVER = '.over'

-- How long a processing lock lives: the time the job may take, and a little more.
local function lock_ttl_ms_of(timeout_field, default_timeout_s, extension_s)
  local timeout_s = tonumber(timeout_field or '') or default_timeout_s
  -- Ten years at most: Redis refuses an expiry that its clock cannot hold, and with it the batch.
  return math.max(1, math.min(315360000000, math.floor((timeout_s + extension_s) * 1000)))
end

-- ttl_seconds: above 0 expire, 0 keep for ever, below 0 leave the expiry as it is.
local function set_expiry(key, ttl_seconds)
  -- Whole seconds, and ten years at most: Redis refuses anything else, and with it the batch.
  if ttl_seconds > 0 then
    redis.call('EXPIRE', key, digits(math.max(1, math.min(315360000, math.floor(ttl_seconds)))))
  elseif ttl_seconds == 0 then redis.call('PERSIST', key) end
end

-- Refused before anything is written, so that a batch is stored whole or not at all.
local function wrong_queue(queues)
  for _, queue in ipairs(queues) do
    local kind = redis.call('TYPE', queue).ok
    if kind ~= 'zset' and kind ~= 'none' then
      return redis.error_reply('RRQTYPE ' .. queue .. ' holds a ' .. kind .. ', not a queue')
    end
  end
end

-- The queue a job was claimed from. Other engines leave no claimed_queue; their queue_name may be
-- bare or a full key. A claimed_queue that is no queue would have a job written into the books.
local function home_queue(claimed_queue, queue_name)
  local base = prefix .. 'queue:'
  if claimed_queue and string.sub(claimed_queue, 1, #base) == base then return claimed_queue end
  local name = queue_name or 'default'
  -- The defaults in settings are full 0.7 keys; under another prefix they name the same queue.
  if prefix ~= 'rrq:' and string.sub(name, 1, 10) == 'rrq:queue:' then name = string.sub(name, 11) end
  if string.sub(name, 1, #base) == base then return name end
  return base .. name
end

-- The name of a queue without what all their keys begin with.
local function short_name(queue) return string.sub(queue, #prefix + 7) end

-- Whether anything is paused, limited or parked; and, asked in the same breath, whether one key more is there. Mostly
-- nothing is, and then this is all that flow control costs.
local function is_controlled(also)
  local parked = prefix .. 'parked'
  local there = redis.call('EXISTS', prefix .. 'pauses', prefix .. 'limits', prefix .. 'limits:override', parked, also or parked)
  if there == 0 or not also then return there > 0, false end
  local is_also = redis.call('EXISTS', also)
  return there > is_also, is_also == 1
end
