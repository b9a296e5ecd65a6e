-- audit: who did what to the queues, in the same step as doing it.
-- needs: context
local AUDIT, MOST_AUDITED = prefix .. 'audit', 10000

-- Nothing is noted for a program that acts for itself, which is what an empty name stands for.
local function audit(actor, action, object, detail)
  if actor == '' then return end
  call_or_repair('XADD', AUDIT, 'MAXLEN', '~', MOST_AUDITED, '*', 'actor', actor, 'action', action, 'object', object,
    'detail', detail)
end
