// Jobs that are enqueued on a schedule.

import { get } from "../api.js";
import { h } from "../dom.js";
import { when } from "../format.js";
import { card, code, empty, pill, table } from "../ui.js";

export default {
  title: "Cron",
  refreshMs: 5000,
  load: (params, signal) => get("cron", null, signal),
  render({ data }) {
    if (!data.entries.length) {
      return card(null, empty("No cron entry", "Add a ", code("CronJob"), " to ", code("cron_jobs"), " of your settings; its worker publishes it here."));
    }
    return card(null, table({
      label: "Cron entries", rows: data.entries.map((entry, index) => ({ ...entry, index })), key: (entry) => `${entry.index}-${entry.function}`,
      columns: [
        { name: "Function", cell: (entry) => [entry.function, " ", entry.unique && pill("quiet", "check", "unique", "Skips a run while the job of an earlier run has not ended")] },
        { name: "Schedule", cell: (entry) => [h("span", { class: "mono" }, entry.schedule), " ", entry.time_zone] },
        { name: "Queue", cell: (entry) => entry.queue },
        { name: "Next", align: "end", cell: (entry) => (entry.next_ms === null ? "never" : when(entry.next_ms)) },
        { name: "Last", align: "end", cell: (entry) => (entry.last_ms === null ? "not yet" : when(entry.last_ms)) },
        { name: "Published", align: "end", cell: (entry) => when(entry.renewed_ms) },
      ],
    }));
  },
};
