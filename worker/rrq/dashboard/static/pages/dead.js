// Dead letters, grouped by error.

import { get, isAdmin } from "../api.js";
import { ask, carryOut, countAffected } from "../dialog.js";
import { h } from "../dom.js";
import { count, plural, when } from "../format.js";
import { button, card, empty, facts, table } from "../ui.js";
import { list } from "./jobs.js";

export default {
  title: "Dead letters",
  refreshMs: 5000,
  load: (params, signal, path) => get(path[0] ? `dead-letters/${encodeURIComponent(path[0])}` : "dead-letters", { offset: params.offset }, signal),
  render({ data, path, params, go, rerender, reload, state }) {
    if (path[0]) return oneGroup(data, params, go, reload);
    if (!data.total) return card(null, empty("No dead letters", "Jobs that failed for good appear here, grouped by error."));
    const text = (state.text ?? "").toLowerCase();
    const groups = data.groups.filter((group) => `${group.function} ${group.pattern}`.toLowerCase().includes(text));
    return h("div", { class: "stack" },
      h("div", { class: "toolbar" },
        h("input", { type: "search", class: "filter", "data-filter": true, placeholder: "Filter by function or error", "aria-label": "Filter groups",
          oninput: (event) => {
            state.text = event.target.value;
            rerender();
          } }),
        h("p", { class: "hint" }, describe(data))),
      card(null, groups.length ? groupTable(groups, reload) : empty("No group matches", "Clear the filter to see all of them.")));
  },
};

function describe(data) {
  const words = `${plural(data.total, "dead letter")} in ${plural(data.group_count, "group")}`;
  return data.looked_at < data.total ? `${words}, of the newest ${count(data.looked_at)}` : words;
}

function groupTable(groups, reload) {
  return table({
    label: "Dead letters by error", rows: groups, key: (group) => group.id, href: (group) => `#/dead/${group.id}`,
    columns: [
      { name: "Error", wide: true, cell: (group) => h("span", { class: "error-line", title: group.example }, group.pattern) },
      { name: "Function", cell: (group) => group.function },
      { name: "Jobs", align: "end", cell: (group) => h("b", null, count(group.count)) },
      { name: "Queue", cell: (group) => Object.keys(group.queues).join(", ") },
      { name: "First", align: "end", cell: (group) => when(group.first_ms) },
      { name: "Last", align: "end", cell: (group) => when(group.last_ms) },
      ...(isAdmin() ? [{ name: "", align: "end", cell: (group) => h("span", { class: "buttons" }, groupButtons(group, reload)) }] : []),
    ],
  });
}

function groupButtons(group, done) {
  return [
    button("Requeue", () => onGroup(group, "requeue-dead-letters", done), { "aria-label": `Requeue all: ${group.pattern}` }),
    button("Delete", () => onGroup(group, "delete-dead-letters", done), { class: "is-danger", "aria-label": `Delete all: ${group.pattern}` }),
  ];
}

async function onGroup(group, action, done) {
  const order = { group: group.id };
  const affected = await countAffected(action, order);
  if (affected === null) return done();
  const isDelete = action === "delete-dead-letters";
  const verb = isDelete ? "Delete" : "Requeue";
  const answer = await ask({
    title: `${verb} ${plural(affected, "job")}?`, danger: isDelete, confirm: `${verb} ${plural(affected, "job")}`,
    words: [h("span", { class: "error-line" }, `${group.function}: ${group.pattern}`), " ",
      isDelete ? "They are deleted. This cannot be undone." : "Each returns to the queue that it came from, with all its attempts again."],
  });
  if (answer && (await carryOut(action, { ...order, expected: affected }))) done();
}

function oneGroup(group, params, go, reload) {
  const change = (offset) => go(`dead/${group.id}`, { offset });
  return h("div", { class: "stack" },
    h("p", { class: "crumbs" }, h("a", { href: "#/dead" }, "Dead letters"), " / ", group.function),
    card(null,
      h("div", { class: "card-head" }, h("h2", null, group.function), isAdmin() && h("div", { class: "buttons" }, groupButtons(group, () => go("dead")))),
      h("p", { class: "error-text" }, group.pattern),
      facts([["Jobs", count(group.count)], ["First", when(group.first_ms)], ["Last", when(group.last_ms)],
        ["Queues", Object.entries(group.queues).map(([name, number]) => `${name} (${count(number)})`).join(", ")], ["Example", group.example]])),
    card("Jobs", list(group.jobs, "dead"),
      h("div", { class: "pager" },
        h("p", { class: "hint" }, `${count(Number(params.offset || 0) + 1)} to ${count(Number(params.offset || 0) + group.jobs.length)} of ${count(group.count)}`),
        Number(params.offset) > 0 && button("First page", () => change("")),
        group.next_offset !== null && button("Next page", () => change(group.next_offset)))));
}
