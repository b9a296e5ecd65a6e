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
      }) : empty(params.before ? "No older entry" : "Nobody has changed anything", "Every pause, limit, requeue and cancellation is written down here with who did it."),
      h("div", { class: "pager" },
        params.before && button("Newest", () => go("audit", {})),
        data.next_before !== null && button("Older", () => go("audit", { before: data.next_before }))));
  },
};

function detail(told) {
  if (told === null || typeof told !== "object") return told === null ? "" : String(told);
  return Object.entries(told).filter(([, value]) => value !== "" && value !== null)
    .map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
}
