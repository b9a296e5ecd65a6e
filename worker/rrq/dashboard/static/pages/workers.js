// The living workers and what each of them runs.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, duration, plural, serverNow, when } from "../format.js";
import { card, code, empty, meter, pill } from "../ui.js";

export default {
  title: "Workers",
  refreshMs: 1000,
  load: (params, signal) => get("workers", null, signal),
  render({ data, rerender, state }) {
    const text = (state.text ?? "").toLowerCase();
    const rows = data.workers.filter((worker) => [worker.id, worker.pod, ...worker.queues].join(" ").toLowerCase().includes(text));
    return h("div", { class: "stack" },
      h("div", { class: "toolbar" },
        h("input", { type: "search", class: "filter", "data-filter": true, placeholder: "Filter workers or queues", "aria-label": "Filter workers",
          oninput: (event) => {
            state.text = event.target.value;
            rerender();
          } }),
        h("p", { class: "hint" }, summary(data.workers))),
      data.workers.length === 0
        ? card(null, empty("No worker is alive", "Start one with ", code("rrq worker run --settings your.settings"), ", or look at your pools."))
        : rows.length === 0 ? card(null, empty("No worker matches", "Clear the filter to see all of them."))
        : h("ul", { class: "grid", "data-list": true }, rows.map(one)));
  },
};

function summary(workers) {
  const busy = workers.reduce((sum, worker) => sum + worker.busy, 0);
  const capacity = workers.reduce((sum, worker) => sum + worker.capacity, 0);
  return `${plural(workers.length, "worker")}, ${count(busy)} of ${count(capacity)} slots in use`;
}

function one(worker) {
  return h("li", { class: "card worker", key: worker.id },
    h("div", { class: "card-head" }, h("h2", { class: "mono" }, worker.id), mark(worker)),
    h("p", { class: "hint" }, worker.queues.length ? `Serves ${worker.queues.join(", ")}` : "Reports no queues",
      worker.registered_ms ? [" · up since ", when(worker.registered_ms)] : "",
      worker.ended !== null ? ` · ${plural(worker.ended, "attempt")} ended` : ""),
    h("div", { class: "slots" }, meter(worker.busy, worker.capacity), h("span", null, `${count(worker.busy)} of ${count(worker.capacity)}`)),
    worker.jobs.length
      ? h("ul", { class: "running" }, worker.jobs.map((job) => h("li", { key: job.id },
        h("a", { class: "row-link", href: `#/jobs/${encodeURIComponent(job.id)}` }, job.function ?? job.id),
        h("span", { class: "hint" }, duration(Math.max(0, (serverNow() - job.started_ms) / 1000))))))
      : h("p", { class: "hint" }, "Runs no job now."));
}

function mark(worker) {
  if (worker.kind === "lost") return pill("bad", "cross", "lost");
  if (worker.is_draining) return pill("warn", "hand", "draining", "Starts no more jobs; running jobs may end");
  if (worker.kind === "rrq-0.7") return pill("quiet", "clock", "RRQ 0.7");
  return worker.busy ? pill("info", "play", "busy") : pill("ok", "check", "idle");
}
