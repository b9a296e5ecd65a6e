-- guard: tell a dead worker from a dead Redis.
-- needs: context
-- After an outage all leases have run out at once, and a reap that already sat in the socket runs
-- before any owner can renew. So Redis keeps the time of the last beat of any worker: a gap in
-- all beats, time going backwards or a restarted server (new run id) puts off reaping by one lease.

-- Longer than any sensible setting; a value that another program has written must not keep the fleet waiting for longer.
local LONGEST_LEASE_MS = 3600000
-- An operator sweeps every second. With short leases, that must not look like sweeps that have stopped.
local SWEEPS_PAUSE_MS = 3000

-- A time that is no number, or one that no clock shows, is none: leases would be moved by it.
local function moment_ms(text)
  local number = tonumber(text or '')
  if number and math.abs(number) < 2 ^ 52 then return number end
end

-- Who reaps need not be a worker: an operator does not know how long the leases of its fleets are. So each beat announces
-- its own; `lease_ms`, the setting of the caller, counts where none is announced.
local function read_guard(guard, lease_ms)
  local seen = call_or_repair('HMGET', guard, 'last_beat_ms', 'reap_not_before_ms',
    'claim_not_before_ms', 'run_id', 'lease_ms', 'silent_since_ms', 'last_sweep_ms')
  local announced_ms = moment_ms(seen[5])
  local is_lease = announced_ms and announced_ms > 0 and announced_ms <= math.max(lease_ms, LONGEST_LEASE_MS)
  return {
    last_beat_ms = moment_ms(seen[1]), reap_not_before_ms = tonumber(seen[2] or '') or 0,
    claim_not_before_ms = tonumber(seen[3] or '') or 0, run_id = seen[4],
    lease_ms = is_lease and announced_ms or lease_ms,
    silent_since_ms = moment_ms(seen[6]), last_sweep_ms = moment_ms(seen[7]),
  }
end

-- A fleet of one beats at least every 0.4 of a lease, which the settings see to; half a lease of silence is an outage,
-- or no worker is left.
local function beats_have_stopped(state)
  if not state.last_beat_ms then return true end
  local gap_ms = now_ms - state.last_beat_ms
  return gap_ms > state.lease_ms / 2 or gap_ms < 0
end

-- The clock of Redis was set back. What ends by the old time moves back with it; or a dead worker would keep its
-- jobs, a fleet that waits after a restart would go on waiting, and parked jobs would not be looked at, until the
-- clock has caught up.
local function follow_clock(guard, state, leases)
  local set_back_ms = (state.last_beat_ms or now_ms) - now_ms
  if set_back_ms <= 0 then return end
  local ends = redis.call('ZRANGE', leases, 0, -1, 'WITHSCORES')
  for i = 1, #ends, 2 do redis.call('ZADD', leases, digits(tonumber(ends[i + 1]) - set_back_ms), ends[i]) end
  local looks = call_or_repair('ZRANGE', prefix .. 'parked', 0, -1, 'WITHSCORES')
  for i = 1, #looks, 2 do redis.call('ZADD', prefix .. 'parked', digits(tonumber(looks[i + 1]) - set_back_ms), looks[i]) end
  if state.claim_not_before_ms > now_ms then
    state.claim_not_before_ms = state.claim_not_before_ms - set_back_ms
    redis.call('HSET', guard, 'claim_not_before_ms', digits(state.claim_not_before_ms))
  end
end

local function put_off_reaping(guard, state, lease_ms)
  state.reap_not_before_ms = now_ms + lease_ms
  redis.call('HSET', guard, 'reap_not_before_ms', digits(state.reap_not_before_ms),
    'silent_since_ms', digits(state.last_beat_ms or 0))
end

-- In a silence of all workers reaping is put off by one lease, in which living workers renew. Only once for each silence:
-- when no worker is left, reaping that each sweep puts off again would never come. But when the sweeps have stopped as
-- well, that is one more outage within the silence.
local function wait_out_silence(guard, state, lease_ms)
  if not beats_have_stopped(state) then return end
  local unswept_ms = now_ms - (state.last_sweep_ms or 0)
  local is_waited_out = state.silent_since_ms == (state.last_beat_ms or 0)
    and unswept_ms >= 0 and unswept_ms <= math.max(state.lease_ms, SWEEPS_PAUSE_MS)
    and state.reap_not_before_ms <= now_ms + math.max(lease_ms, LONGEST_LEASE_MS)
  if not is_waited_out then put_off_reaping(guard, state, lease_ms) end
end

-- Another program may delete all leases at once, which reaping never does: it deletes the record of a worker with
-- its lease. Each worker that has a record gets a new lease. Living workers renew it; that of a dead one runs out, and
-- only then do its jobs come back.
local function restore_leases(leases, active_workers, lease_ms)
  if redis.call('EXISTS', leases) == 1 then return end
  for _, id in ipairs(pcall_or_repair('ZRANGE', active_workers, 0, -1)) do
    if redis.call('EXISTS', prefix .. 'workers:info:' .. id) == 1 then
      redis.call('ZADD', leases, now_ms + lease_ms, id)
    end
  end
end
