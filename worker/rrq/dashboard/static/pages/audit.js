// Who changed what.

import { get } from "../api.js";
import { h } from "../dom.js";
import { when } from "../format.js";
import { button, card, empty, table } from "../ui.js";

export default {
  title: "Audit",
  refreshMs: 3000,
  load: (params, signal) => get("audit", { before: params.before }, signal),
  render({ data, params, go }) {
    return card(null,
      data.entries.length ? table({
        label: "Audit", rows: data.entries, key: (entry) => entry.id,
        columns: [
          { name: "When", cell: (entry) => when(entry.at_ms) },
          { name: "Who", cell: (entry) => entry.actor },
          { name: "Did", cell: (entry) => h("b", null, entry.action) },
          { name: "To", wide: true, cell: (entry) => entry.object },
          { name: "More", wide: true, cell: (entry) => detail(entry.detail) },
        ],
      }) : empty(params.before ? "No older entry" : "No changes yet", "Every pause, limit, requeue and cancellation is listed here with its user."),
      h("div", { class: "pager" },
        params.before && button("Newest", () => go("audit", {})),
        data.next_before !== null && button("Older", () => go("audit", { before: data.next_before }))));
  },
};

function detail(fields) {
  if (fields === null || typeof fields !== "object") return fields === null ? "" : String(fields);
  return Object.entries(fields).filter(([, value]) => value !== "" && value !== null)
    .map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
}
