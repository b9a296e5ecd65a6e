// The state of the fleet at a glance, live.

import { Chart, sparkline } from "../chart.js";
import { h } from "../dom.js";
import { count, duration, plural, rate, serverNow, shortDuration } from "../format.js";
import { live } from "../live.js";
import { button, card, empty, icon, pausePill, table, tile } from "../ui.js";

const LIVE_MS = 5 * 60_000;
const LEAST_MS = 60_000;
const HOUR_MS = 60 * 60_000;
// A job that waits longer than this counts as late.
const LATE_SECONDS = 60;

const WAIT_SERIES = [
  { name: "mean", key: "wait_seconds", tone: "4", filled: true },
  { name: "longest", key: "longest", tone: "2", dashed: true },
];

let charts = null;
let range = "live";

export default {
  title: "Overview",
  render({ params, go }) {
    range = params.range === "hour" ? "hour" : "live";
    const now = live.now;
    if (!now) return card(null, empty("Waiting for the first reading of Redis", "It takes about a second."));
    charts ??= buildCharts();
    return h("div", { class: "stack" },
      verdict(now),
      h("div", { class: "tiles" }, tiles(now)),
      h("section", { class: "card" },
        h("div", { class: "card-head" }, h("h2", null, "Traffic"),
          h("div", { class: "segments", role: "group", "aria-label": "Time range" },
            segment("live", "5 min", go), segment("hour", "60 min", go))),
        h("div", { class: "charts" }, Object.keys(charts).map((name) => h("div", { key: name, "data-own": true, "data-chart": name })))),
      h("section", { class: "card" },
        h("div", { class: "card-head" }, h("h2", null, "Deepest queues"),
          h("a", { href: "#/queues" }, now.queue_count > now.queues.length ? `All ${now.queue_count} queues` : "All queues")),
        now.queues.length ? queueTable(now.queues) : empty("No queue yet", "Enqueue a job, and its queue appears here.")));
  },
  mounted(root) {
    if (!charts) return;
    for (const place of root.querySelectorAll("[data-chart]")) {
      const { element } = charts[place.dataset.chart];
      if (element.parentNode !== place) place.replaceChildren(element);
    }
    updateCharts();
  },
};

function segment(name, words, go) {
  return button(words, () => go("overview", { range: name === "hour" ? name : "" }), { class: "segment", "aria-pressed": String(range === name) });
}

function buildCharts() {
  return {
    throughput: new Chart({
      title: "Throughput", format: (value) => `${rate(value)}/s`, maximum: 1,
      series: [
        { name: "done", key: "done", tone: "1", filled: true },
        { name: "retried", key: "retry", tone: "2" },
        { name: "dead", key: "dead", tone: "3", dashed: true },
      ],
    }),
    wait: new Chart({
      title: "Wait before start", format: shortDuration, maximum: 0.01,
      series: WAIT_SERIES,
    }),
    depth: new Chart({
      title: "Depth", format: count, maximum: 5,
      series: [
        { name: "due", key: "due", tone: "5", filled: true },
        { name: "running", key: "running", tone: "4" },
      ],
    }),
  };
}

function updateCharts() {
  const now = serverNow();
  // The longest wait is only stored for each minute.
  charts.wait.series = range === "live" ? WAIT_SERIES.slice(0, 1) : WAIT_SERIES;
  if (range === "live") {
    const points = live.samples.map((sample) => ({
      at_ms: sample.at_ms, done: sample.rates?.done ?? null, retry: sample.rates?.retry ?? null,
      dead: sample.rates?.dead ?? null, wait_seconds: sample.wait_seconds,
      due: sample.due, running: sample.running,
    }));
    // A page that was just opened shows its few samples, not empty minutes.
    const from = Math.max(now - LIVE_MS, Math.min(points[0]?.at_ms ?? now, now - LEAST_MS));
    for (const chart of Object.values(charts)) chart.update(points, from, now);
    return;
  }
  const thisMinute = Math.floor(now / 60_000) * 60_000;
  const points = live.minutes.map((minute) => {
    // The current minute is not over yet.
    const seconds = minute.at_ms === thisMinute ? Math.max(1, (now - thisMinute) / 1000) : 60;
    return {
      at_ms: minute.at_ms, done: minute.done / seconds, retry: minute.retry / seconds, dead: minute.dead / seconds,
      wait_seconds: minute.wait_seconds, longest: minute.wait_max_seconds, due: minute.due, running: minute.running,
    };
  });
  for (const chart of Object.values(charts)) chart.update(points, now - HOUR_MS, now);
}

function verdict(now) {
  const [tone, sign, title, words] = judge(now);
  return h("div", { class: `verdict is-${tone}` }, icon(sign), h("p", null, h("strong", null, title), ` ${words}`));
}

function judge(now) {
  if (now.due > 0 && now.workers === 0) {
    return ["bad", "dead", "No workers.", `${plural(now.due, "job is", "jobs are")} due and no worker is alive. Start one: rrq worker run`];
  }
  if (now.orphaned > 0 && now.workers === 0) {
    return ["bad", "dead", "No workers.", `${plural(now.orphaned, "job is", "jobs are")} orphaned: their worker is dead, and no other worker is alive. Start one: rrq worker run`];
  }
  if ((now.oldest_seconds ?? 0) > LATE_SECONDS) {
    return ["warn", "clock", "Falling behind.", `The oldest due job has waited ${duration(now.oldest_seconds)}; ${plural(now.due, "job is", "jobs are")} due.`];
  }
  if (now.workers === 0) return ["quiet", "pause", "Quiet.", "No job is due and no worker is alive."];
  if (now.due === 0 && now.running === 0) return ["ok", "check", "Idle.", `No job is due; ${plural(now.workers, "worker waits", "workers wait")}.`];
  return ["ok", "check", "Keeping up.", now.due ? `The oldest due job has waited ${duration(now.oldest_seconds)}.` : "No job has to wait."];
}

function tiles(now) {
  const recent = live.samples.slice(-60);
  const done = recent.slice(-5).map((sample) => sample.rates?.done).filter((value) => value !== undefined && value !== null);
  const mean = done.length ? done.reduce((sum, value) => sum + value, 0) / done.length : null;
  return [
    tile({ name: "Throughput", value: rate(mean), unit: "jobs/s", note: "in the last seconds",
      spark: sparkline(recent.filter((sample) => sample.rates).map((sample) => sample.rates.done), "Throughput in the last minute") }),
    tile({ name: "Due", value: count(now.due), href: "#/jobs?source=queued",
      note: [`${count(now.later)} later`, now.blocked ? `${count(now.blocked)} blocked` : null, now.orphaned ? `${count(now.orphaned)} orphaned` : null].filter(Boolean).join(", "),
      spark: sparkline(recent.map((sample) => sample.due), "Due jobs in the last minute") }),
    tile({ name: "Oldest due", value: shortDuration(now.oldest_seconds), href: "#/queues", note: "in any queue",
      tone: (now.oldest_seconds ?? 0) > LATE_SECONDS ? "warn" : null }),
    tile({ name: "Running", value: count(now.running), unit: `of ${count(now.capacity)}`, href: "#/jobs?source=running",
      note: "slots in use", spark: sparkline(recent.map((sample) => sample.running), "Running jobs in the last minute") }),
    tile({ name: "Workers", value: count(now.workers), href: "#/workers",
      note: now.draining ? `${count(now.draining)} draining` : "alive" }),
    tile({ name: "Dead letters", value: count(now.dead_letters), href: "#/dead",
      note: now.dead_letters ? "need a decision" : "none", tone: now.dead_letters ? "bad" : null }),
  ];
}

function queueTable(queues) {
  return table({
    label: "Deepest queues", rows: queues, key: (queue) => queue.name, href: (queue) => `#/queues/${encodeURIComponent(queue.name)}`,
    columns: [
      { name: "Queue", cell: (queue) => [queue.name, " ", pausePill(queue.pause)] },
      { name: "Due", align: "end", cell: (queue) => count(queue.due) },
      { name: "Oldest", align: "end", cell: (queue) => duration(queue.oldest_seconds) },
      { name: "Started / min", align: "end", cell: (queue) => rate(queue.started_per_minute) },
      { name: "Mean wait", align: "end", cell: (queue) => duration(queue.wait_seconds) },
    ],
  });
}
