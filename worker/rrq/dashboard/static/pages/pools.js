// Pools, and the decisions about their size over time.

import { get, isAdmin } from "../api.js";
import { Chart, sparkline } from "../chart.js";
import { h } from "../dom.js";
import { count, plural, serverNow, when } from "../format.js";
import { card, code, empty, facts, pausePill, pill, table } from "../ui.js";
import { pauseButton } from "./queues.js";

const MOST_SPARKS = 20;
let charts = null;
let chartedPool = null;
let decisions = [];

export default {
  title: "Pools",
  refreshMs: 2000,
  async load(params, signal, path) {
    const { pools } = await get("pools", null, signal);
    const wanted = path.length ? [path.map(decodeURIComponent).join("/")] : pools.slice(0, MOST_SPARKS).map((pool) => pool.pool);
    const answers = await Promise.all(wanted.map((pool) => get("decisions", { pool }, signal)));
    return { pools, decisions: Object.fromEntries(wanted.map((pool, index) => [pool, answers[index].decisions])) };
  },
  render({ data, path, reload }) {
    if (path.length) return onePool(data, path.map(decodeURIComponent).join("/"), reload);
    if (!data.pools.length) {
      return card(null, empty("No pool has reported here", "Pools report when the operator, or ", code("rrq-operator local"), ", scales them by this Redis. Workers that you start yourself are under Workers."));
    }
    return h("ul", { class: "grid", "data-list": true }, data.pools.map((pool) => poolCard(pool, data.decisions[pool.pool] ?? [], reload)));
  },
  mounted(root) {
    if (!charts) return;
    for (const place of root.querySelectorAll("[data-chart]")) {
      const { element } = charts[place.dataset.chart];
      if (element.parentNode !== place) place.replaceChildren(element);
    }
    if (!decisions.length) return;
    const points = [...decisions].reverse();
    const now = Math.max(serverNow(), points[points.length - 1].at_ms);
    const upToNow = [...points, { ...points[points.length - 1], at_ms: now }];
    for (const chart of Object.values(charts)) chart.update(upToNow, points[0].at_ms, now);
  },
};

function size(pool) {
  return h("p", { class: "big" }, count(pool.ready), h("small", null, ` of ${count(pool.replicas)} ready`),
    pool.desired !== pool.replicas && pill("info", "hand", `wants ${count(pool.desired)}`));
}

function poolCard(pool, past, reload) {
  const steps = [...past].reverse().map((decision) => decision.desired ?? 0);
  return h("li", { class: "card", key: pool.pool },
    h("div", { class: "card-head" },
      h("h2", null, h("a", { class: "row-link", href: `#/pools/${pool.pool.split("/").map(encodeURIComponent).join("/")}` }, pool.pool)),
      pausePill(pool.pause) ?? (pool.is_paused ? pill("warn", "pause", "paused") : null)),
    size(pool),
    h("p", { class: "hint" }, `${pool.type ?? "Pool"} for ${pool.queues.join(", ") || "no queue"} · ${count(pool.due)} due${pool.blocked ? ` (${count(pool.blocked)} blocked)` : ""}, ${count(pool.busy)} busy`),
    h("div", { class: "wide-spark" }, sparkline(steps, `Decided size of ${pool.pool} over time`, true)),
    h("p", null, h("b", null, pool.reason), pool.words ? `: ${pool.words}` : "", " ", h("span", { class: "hint" }, when(pool.at_ms))),
    isAdmin() && h("div", { class: "buttons" }, pauseButton(`pool:${pool.pool}`, pool.pause, reload)));
}

function onePool(data, name, reload) {
  const pool = data.pools.find((candidate) => candidate.pool === name);
  decisions = data.decisions[name] ?? [];
  if (!pool) return card(null, empty(`No pool ${name} has reported here`, h("a", { href: "#/pools" }, "All pools")));
  if (chartedPool !== name) {
    chartedPool = name;
    charts = {
      size: new Chart({ title: "Size", format: count, step: true, maximum: 2, series: [
        { name: "decided", key: "desired", tone: "1", filled: true }, { name: "ready", key: "ready", tone: "4", dashed: true }] }),
      load: new Chart({ title: "Work", format: count, maximum: 5, series: [
        { name: "due", key: "due", tone: "5", filled: true }, { name: "busy", key: "busy", tone: "4" }] }),
    };
  }
  return h("div", { class: "stack" },
    h("p", { class: "crumbs" }, h("a", { href: "#/pools" }, "Pools"), " / ", name),
    card(null,
      h("div", { class: "card-head" }, h("h2", null, name, " ", pausePill(pool.pause)),
        isAdmin() && h("div", { class: "buttons" }, pauseButton(`pool:${name}`, pool.pause, reload))),
      size(pool),
      h("p", null, h("b", null, pool.reason), pool.words ? `: ${pool.words}` : ""),
      facts([["Type", pool.type], ["Queues", pool.queues.join(", ")], ["Due", count(pool.due)], ["Busy", count(pool.busy)], ["Decided", when(pool.at_ms)]]),
      decisions.length ? h("div", { class: "charts is-two" }, ["size", "load"].map((chart) =>
        h("div", { key: chart, "data-own": true, "data-chart": chart }))) : null),
    card("Decisions", decisions.length ? decisionTable(decisions) : empty("No decisions yet", "They are stored for a week."),
      h("p", { class: "hint" }, `The last ${plural(decisions.length, "decision")}`)));
}

function decisionTable(rows) {
  return table({
    label: "Scaling decisions", rows: rows.slice(0, 100), key: (decision) => `${decision.at_ms}`,
    columns: [
      { name: "When", cell: (decision) => when(decision.at_ms) },
      { name: "Size", align: "end", cell: (decision) => (decision.desired === decision.replicas ? count(decision.desired) : `${count(decision.replicas)} → ${count(decision.desired)}`) },
      { name: "Ready", align: "end", cell: (decision) => count(decision.ready) },
      { name: "Due", align: "end", cell: (decision) => count(decision.due) },
      { name: "Busy", align: "end", cell: (decision) => count(decision.busy) },
      { name: "Reason", wide: true, cell: (decision) => [h("b", null, decision.reason), decision.words ? `: ${decision.words}` : ""] },
    ],
  });
}
