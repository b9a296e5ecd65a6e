// Lists of jobs with a filter, and one job by its id.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, duration, when } from "../format.js";
import { button, card, code, empty, status, table } from "../ui.js";
import { renderJob } from "./job.js";

const SOURCES = [["recent", "Ended"], ["running", "Running"], ["queued", "Queued"], ["blocked", "Blocked"], ["dead", "Dead"]];
const STATUSES = ["", "COMPLETED", "CANCELLED", "FAILED", "PENDING", "RETRYING", "ACTIVE"];

export default {
  title: "Jobs",
  refreshMs: 2000,
  load(params, signal, path) {
    if (path[0]) return get("job", { id: decodeURIComponent(path[0]) }, signal);
    return get("jobs", params, signal);
  },
  render(context) {
    const { data, path, params, go } = context;
    if (path[0]) return renderJob(context);
    const source = params.source ?? "recent";
    const change = (changes) => go("jobs", { ...params, offset: "", ...changes });
    return h("div", { class: "stack" },
      h("div", { class: "toolbar" },
        h("div", { class: "segments", role: "group", "aria-label": "Which jobs" }, SOURCES.map(([name, words]) =>
          button(words, () => change({ source: name, status: "" }), { class: "segment", "aria-pressed": String(source === name) }))),
        h("form", { class: "filters", role: "search", onsubmit: (event) => {
          event.preventDefault();
          change({ text: event.target.elements.text.value.trim() });
        } },
          h("input", { type: "search", name: "text", class: "filter", "data-filter": true, value: params.text ?? "", key: `text-${params.text ?? ""}`,
            placeholder: "Function, error or id", "aria-label": "Filter jobs by function, error or id" }),
          queueSelect(data.queues, params.queue ?? "", (queue) => change({ queue })),
          source === "recent" && h("select", { "aria-label": "Status", onchange: (event) => change({ status: event.target.value }) },
            STATUSES.slice(0, 4).map((name) => h("option", { value: name, selected: name === (params.status ?? "") }, name ? name.toLowerCase() : "any status"))),
          h("button", { type: "submit" }, "Find"),
          params.text && h("a", { class: "button", href: `#/jobs/${encodeURIComponent(params.text)}` }, "Open as id"))),
      card(null,
        data.jobs.length ? list(data.jobs, source) : nothing(source, params),
        h("div", { class: "pager" },
          h("p", { class: "hint" }, describe(data, params)),
          Number(params.offset) > 0 && button("First page", () => change({})),
          data.next_offset !== null && button("Next page", () => go("jobs", { ...params, offset: data.next_offset })))));
  },
};

function queueSelect(known, chosen, onchoose) {
  const names = new Set(known);
  if (chosen) names.add(chosen);
  return h("select", { "aria-label": "Queue", onchange: (event) => onchoose(event.target.value) },
    h("option", { value: "", selected: !chosen }, "any queue"),
    [...names].sort().map((name) => h("option", { value: name, selected: name === chosen }, name)));
}

export function list(jobs, source) {
  const times = {
    running: { name: "Started", align: "end", cell: (job) => when(job.started_ms) },
    queued: { name: "Due", align: "end", cell: (job) => when(job.due_ms) },
    blocked: { name: "Was due", align: "end", cell: (job) => when(job.due_ms) },
  };
  const hasErrors = jobs.some((job) => job.error);
  return table({
    label: "Jobs", rows: jobs, key: (job) => job.id, href: (job) => `#/jobs/${encodeURIComponent(job.id)}`,
    columns: [
      { name: "Function", cell: (job) => (job.is_gone ? "(no longer stored)" : job.function ?? "(none)") },
      { name: "Status", cell: (job) => (job.is_gone ? "" : status(job.status)) },
      { name: "Queue", cell: (job) => job.queue ?? "" },
      source === "running" ? { name: "Worker", cell: (job) => h("span", { class: "mono" }, job.worker ?? "") }
        : source === "blocked" ? { name: "Blocked by", cell: (job) => h("span", { class: "mono" }, job.scope ?? "") }
        : hasErrors ? { name: "Error", wide: true, cell: (job) => (job.error ? h("span", { class: "error-line", title: job.error }, job.error) : "") }
        : { name: "Waited", align: "end", cell: (job) => duration(job.wait_seconds) },
      { name: "Run time", align: "end", cell: (job) => duration(job.run_seconds) },
      times[source] ?? { name: "Ended", align: "end", cell: (job) => when(job.ended_ms) },
      { name: "Id", cell: (job) => h("span", { class: "mono id", title: job.id }, job.id) },
    ],
  });
}

function nothing(source, params) {
  if (params.text || params.status || params.queue) {
    return empty("No job matches", "Clear the filter, choose another list, or press Next page for older entries.");
  }
  const words = {
    recent: ["No job has ended yet", "Jobs that are done, dead or cancelled appear here."],
    running: ["No job is running", "Workers wait for jobs, or no worker is alive."],
    queued: ["All queues are empty", "Enqueue one: ", code("await client.enqueue(\"my_function\")")],
    blocked: ["No job is blocked", "Jobs appear here while a limit or a paused function keeps them from starting."],
    dead: ["No dead letters", "Jobs that failed for good appear here."],
  };
  return empty(...words[source]);
}

function describe(data, params) {
  const from = Number(params.offset || 0);
  if (!data.total) return "";
  const isFiltered = params.text || params.status || (params.queue && params.source !== "queued");
  if (isFiltered) return `${count(data.jobs.length)} found among entries ${count(from + 1)} to ${count(from + data.looked_at)} of ${count(data.total)}`;
  return `${count(from + 1)} to ${count(from + data.jobs.length)} of ${count(data.total)}`;
}
