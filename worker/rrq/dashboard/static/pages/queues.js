// All queues, and one of them.

import { get, isAdmin } from "../api.js";
import { sparkline } from "../chart.js";
import { ask, carryOut, countAffected } from "../dialog.js";
import { h } from "../dom.js";
import { count, duration, plural, rate, when } from "../format.js";
import { limitWords } from "../limits.js";
import { button, card, empty, facts, pausePill, table } from "../ui.js";

export default {
  title: "Queues",
  refreshMs: 1000,
  load: (params, signal) => get("queues", null, signal),
  render({ data, path, rerender, reload, state }) {
    const name = path[0] ? decodeURIComponent(path[0]) : null;
    if (name) return oneQueue(data.queues.find((queue) => queue.name === name), name, reload);
    const text = (state.text ?? "").toLowerCase();
    const rows = data.queues.filter((queue) => queue.name.toLowerCase().includes(text));
    return h("div", { class: "stack" },
      h("div", { class: "toolbar" },
        h("input", { type: "search", class: "filter", "data-filter": true, placeholder: "Filter queues", "aria-label": "Filter queues",
          oninput: (event) => {
            state.text = event.target.value;
            rerender();
          } })),
      card(null, rows.length ? list(rows, reload) : empty("No queue of that name", "A queue appears when a worker serves it or it had a job recently.")));
  },
};

function list(rows, reload) {
  return table({
    label: "Queues", rows, key: (queue) => queue.name, href: (queue) => `#/queues/${encodeURIComponent(queue.name)}`,
    columns: [
      { name: "Queue", cell: (queue) => [queue.name, " ", pausePill(queue.pause)] },
      { name: "Due", align: "end", cell: (queue) => count(queue.due) },
      { name: "Oldest", align: "end", cell: (queue) => duration(queue.oldest_seconds) },
      { name: "Later", align: "end", cell: (queue) => count(queue.later) },
      { name: "Workers", align: "end", cell: (queue) => count(queue.workers) },
      { name: "Mean wait", align: "end", cell: (queue) => duration(queue.wait_seconds) },
      { name: "Started / min", align: "end", cell: (queue) => rate(queue.started_per_minute) },
      { name: "Last 30 min", cell: (queue) => sparkline(queue.started_minutes, `Started per minute in ${queue.name}, last 30 minutes`) },
      ...(isAdmin() ? [{ name: "", align: "end", cell: (queue) => pauseButton(`queue:${queue.name}`, queue.pause, reload) }] : []),
    ],
  });
}

function oneQueue(queue, name, reload) {
  if (!queue) return card(null, empty(`There is no queue ${name}`, "No worker serves it, and it had no job recently. ", h("a", { href: "#/queues" }, "All queues")));
  return h("div", { class: "stack" },
    h("p", { class: "crumbs" }, h("a", { href: "#/queues" }, "Queues"), " / ", name),
    card(null,
      h("div", { class: "card-head" }, h("h2", null, name, " ", pausePill(queue.pause)),
        isAdmin() && h("div", { class: "buttons" },
          pauseButton(`queue:${name}`, queue.pause, reload),
          button("Cancel queued jobs", () => cancelAll(name, reload), { class: "is-danger" }))),
      queue.pause && h("p", { class: "note is-warn" }, `Paused by ${queue.pause.by || "an unknown user"} `, when(queue.pause.at_ms),
        queue.pause.reason ? `: ${queue.pause.reason}` : "", ". Workers start no job from it, and no pool scales up for it."),
      facts([
        ["Due", count(queue.due)], ["Oldest due", duration(queue.oldest_seconds)], ["Later", count(queue.later)],
        ["Next due", when(queue.next_due_ms)], ["Blocked", queue.blocked ? count(queue.blocked) : null], ["Orphaned", queue.orphaned ? count(queue.orphaned) : null], ["Workers", count(queue.workers)],
        ["Mean wait", duration(queue.wait_seconds)], ["Started per minute", rate(queue.started_per_minute)],
        ["Dead in the last hour", count(queue.dead_last_hour)], ["Limit", queue.limit ? limitWords(queue.limit) : null],
      ]),
      h("div", { class: "wide-spark" }, sparkline(queue.started_minutes, "Started per minute, last 30 minutes")),
      h("p", { class: "hint" }, "Started per minute, last 30 minutes")),
    h("p", null, h("a", { href: `#/jobs?source=queued&queue=${encodeURIComponent(name)}` }, "Jobs in this queue")));
}

export function pauseButton(target, pause, reload) {
  const [kind, name] = [target.slice(0, target.indexOf(":")), target.slice(target.indexOf(":") + 1)];
  if (pause) {
    return button("Resume", async () => {
      const answer = await ask({ title: `Resume ${kind} ${name}?`, words: `It was ${pause.state} by ${pause.by || "an unknown user"}.`, confirm: `Resume ${name}` });
      if (answer && (await carryOut("resume", { target }))) reload();
    }, { "aria-label": `Resume ${kind} ${name}` });
  }
  return button("Pause", async () => {
    const answer = await ask({
      title: `Pause ${kind} ${name}?`, confirm: `Pause ${name}`,
      words: kind === "pool" ? "Its workers start no more jobs; running jobs go on." : "No job of it starts until it is resumed; running jobs go on.",
      fields: [{ name: "reason", label: "Reason, for other users", value: "" }],
    });
    if (answer && (await carryOut("pause", { target, state: "paused", reason: answer.reason }))) reload();
  }, { "aria-label": `Pause ${kind} ${name}` });
}

async function cancelAll(queue, reload) {
  const filled = await ask({
    title: `Cancel jobs in ${queue}`, words: "The next step shows how many jobs match. Running jobs go on.", confirm: "Count them",
    fields: [{ name: "function", label: "Only of this function (empty: of any)", value: "" }],
  });
  if (!filled) return;
  const order = { queue, function: filled.function };
  const affected = await countAffected("cancel-where", order);
  if (affected === null) return;
  const answer = await ask({
    title: `Cancel ${plural(affected, "job")}?`, danger: true, confirm: `Cancel ${plural(affected, "job")}`,
    words: affected ? "They will not run. This cannot be undone." : "Nothing matches, so nothing would change.",
  });
  if (answer && affected && (await carryOut("cancel-where", { ...order, expected: affected }))) reload();
}
