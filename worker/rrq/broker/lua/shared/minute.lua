-- minute: where what happens now is counted, for charts.
-- needs: context
local MINUTE = prefix .. 'stats:' .. math.floor(now_ms / 60000)
-- A day and an hour: yesterday at this time is the question most often asked of a chart.
local STATISTICS_SECONDS = 90000
