-- publish_cron_table: keep the cron table of a group of workers, the one of its newest living process.
-- needs: context
-- KEYS     1 index of all tables (group -> end in ms)   2 table of the group
-- ARGV     1 key prefix   2 group   3 start of the publisher (ms), '' when it publishes for the first time
--          4 table (JSON), '' for no entries   5 keep for (ms)   6 patience (ms)
-- Returns  {start of the publisher in ms, code}
--          code: 1 published   0 a process that started later has published   -1 there was nothing to withdraw
local index, key, group, table_text = KEYS[1], KEYS[2], ARGV[2], ARGV[4]
local keep_ms, patience_ms = tonumber(ARGV[5]), tonumber(ARGV[6])
local started_ms = tonumber(ARGV[3]) or now_ms
local stored = redis.pcall('HMGET', key, 'started_ms', 'renewed_ms')
if stored.err then stored = {} end
local other_started_ms, renewed_ms = tonumber(stored[1] or ''), tonumber(stored[2] or '')
if table_text == '' and not (other_started_ms and renewed_ms) then return {started_ms, -1} end
-- A publisher that renews no more is gone, and the processes it had outdated speak for the group again:
-- a roll-out was taken back. Renewed in the future means that the clock has been set back.
local is_in_use = other_started_ms and renewed_ms and math.abs(now_ms - renewed_ms) <= patience_ms
if is_in_use and other_started_ms > started_ms then return {started_ms, 0} end
redis.call('DEL', key)
-- An empty table is kept as well, or the next renewal of an old process would bring its own back.
redis.call('HSET', key, 'started_ms', digits(started_ms), 'renewed_ms', digits(now_ms), 'table', table_text)
redis.call('PEXPIRE', key, digits(keep_ms))
if redis.call('TYPE', index).ok ~= 'zset' then redis.call('DEL', index) end
redis.call('ZREMRANGEBYSCORE', index, '-inf', digits(now_ms))
redis.call('ZADD', index, digits(now_ms + keep_ms), group)
redis.call('PEXPIREAT', index, digits(math.min(2 ^ 52, tonumber(redis.call('ZRANGE', index, -1, -1, 'WITHSCORES')[2]))))
return {started_ms, 1}
