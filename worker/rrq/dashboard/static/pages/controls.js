// What blocks jobs: pauses, disabled functions, limits.

import { get, isAdmin } from "../api.js";
import { ask, carryOut } from "../dialog.js";
import { h } from "../dom.js";
import { count, when } from "../format.js";
import { limitWords } from "../limits.js";
import { button, card, empty, pausePill, table } from "../ui.js";
import { pauseButton } from "./queues.js";

export default {
  title: "Controls",
  refreshMs: 2000,
  load: (params, signal) => get("controls", null, signal),
  render({ data, rerender, reload, state }) {
    const text = (state.text ?? "").toLowerCase();
    const rows = data.functions.filter((row) => row.name.toLowerCase().includes(text));
    return h("div", { class: "stack" },
      card("In force now", data.pauses.length ? pauseTable(data.pauses, reload)
        : empty("Nothing is paused", isAdmin() ? "Pause a queue on its page, a function below, a pool under Pools." : "Admins can pause queues, functions and pools.")),
      h("section", { class: "card" },
        h("div", { class: "card-head" }, h("h2", null, "Functions"),
          h("div", { class: "toolbar" },
            h("input", { type: "search", class: "filter", "data-filter": true, placeholder: "Filter functions", "aria-label": "Filter functions",
              oninput: (event) => {
                state.text = event.target.value;
                rerender();
              } }),
            isAdmin() && button("Disable another…", () => disable("", reload)))),
        rows.length ? functionTable(rows, reload)
          : empty("No function", "A function appears when one of its jobs has ended recently, or when it has a limit.")));
  },
};

function pauseTable(pauses, reload) {
  return table({
    label: "Pauses", rows: pauses, key: (pause) => pause.target,
    columns: [
      { name: "What", cell: (pause) => pause.target.replace(":", " ") },
      { name: "State", cell: (pause) => pausePill(pause) },
      { name: "By", cell: (pause) => pause.by },
      { name: "Reason", wide: true, cell: (pause) => pause.reason },
      { name: "Since", align: "end", cell: (pause) => when(pause.at_ms) },
      ...(isAdmin() ? [{ name: "", align: "end", cell: (pause) => pauseButton(pause.target, pause, reload) }] : []),
    ],
  });
}

function functionTable(rows, reload) {
  return table({
    label: "Functions", rows, key: (row) => row.name,
    columns: [
      { name: "Function", cell: (row) => [h("a", { class: "row-link", href: `#/jobs?source=recent&text=${encodeURIComponent(row.name)}` }, row.name), " ", pausePill(row.pause)] },
      { name: "Limit", wide: true, cell: (row) => (row.limit ? limitWords(row.limit) : "") },
      { name: "Blocked", align: "end", cell: (row) => (row.blocked ? count(row.blocked) : "") },
      { name: "Ended recently", align: "end", cell: (row) => count(row.recent) },
      ...(isAdmin() ? [{ name: "", align: "end", cell: (row) => h("span", { class: "buttons" }, pauseButton(`function:${row.name}`, row.pause, reload),
        !row.pause && button("Disable", () => disable(row.name, reload), { class: "is-danger", "aria-label": `Disable function ${row.name}` })) }] : []),
    ],
  });
}

async function disable(name, reload) {
  const answer = await ask({
    title: name ? `Disable function ${name}?` : "Disable a function", danger: true, confirm: "Disable",
    words: "Producers cannot enqueue jobs of it, and queued jobs wait until it is resumed. Running jobs go on.",
    fields: [
      ...(name ? [] : [{ name: "function", label: "Function", check: (text) => (text.trim() ? null : "Name the function.") }]),
      { name: "reason", label: "Reason, for other users" },
    ],
  });
  if (!answer) return;
  const target = `function:${name || answer.function.trim()}`;
  if (await carryOut("pause", { target, state: "disabled", reason: answer.reason })) reload();
}
