// One job: its state, each attempt, its arguments and its error.

import { isAdmin, session } from "../api.js";
import { ask, carryOut } from "../dialog.js";
import { h } from "../dom.js";
import { count, duration, exact, when } from "../format.js";
import { button, card, facts, icon, meter, say, status } from "../ui.js";

const KINDS = {
  enqueued: ["quiet", "hand", "Enqueued"],
  retry: ["warn", "again", "Failed, to be retried"],
  dead: ["bad", "cross", "Failed for good"],
  back: ["warn", "hand", "Returned by its worker, or taken from a dead worker"],
  cancelled: ["quiet", "cross", "Cancelled"],
  running: ["info", "play", "Running"],
  done: ["ok", "check", "Done"],
  due: ["quiet", "clock", "Due"],
  blocked: ["warn", "pause", "Blocked by a limit or a pause; was due"],
};

let isHidden = readHidden();

export function renderJob({ data: job, rerender, reload, go }) {
  return h("div", { class: "stack" },
    h("p", { class: "crumbs" }, h("a", { href: "#/jobs" }, "Jobs"), " / ", h("span", { class: "mono" }, job.id)),
    card(null,
      h("div", { class: "card-head" },
        h("h2", null, job.function ?? "(no function)", " ", status(job.status)),
        h("div", { class: "buttons" }, button("Copy id", () => copy(job.id)), isAdmin() && actions(job, reload, go))),
      job.progress && progress(job.progress),
      facts([
        ["Queue", job.queue && h("a", { href: `#/queues/${encodeURIComponent(job.queue)}` }, job.queue)],
        ["Attempts failed", `${count(job.retries)} of ${count(job.max_retries)}`],
        ["Enqueued", when(job.created_ms)], ["Due", when(job.due_ms)], ["Started", job.started_ms ? when(job.started_ms) : null],
        ["Ended", job.ended_ms ? when(job.ended_ms) : null], ["Waited", job.wait_seconds === null ? null : duration(job.wait_seconds)],
        ["Ran for", job.run_seconds === null ? null : duration(job.run_seconds)],
        ["Worker", job.worker && h("span", { class: "mono" }, job.worker)], ["Blocked by", job.scope],
        ["Unique key", job.unique_key], ["Timeout", job.timeout_seconds === null ? null : duration(job.timeout_seconds)],
        ["Batch", job.batch_id && h("span", { class: "mono" }, job.batch_id)],
        ["Follows", job.parent_id && h("a", { class: "mono", href: `#/jobs/${encodeURIComponent(job.parent_id)}` }, job.parent_id)],
        ["Then", job.chain.join(", ")],
      ])),
    job.error && card("Error", h("p", { class: "error-text" }, job.error),
      job.traceback && h("details", { class: "trace", open: true }, h("summary", null, "Traceback"), h("pre", { tabindex: "0" }, job.traceback))),
    card("What happened", timeline(job.timeline)),
    values(job, rerender));
}

function timeline(events) {
  let attempt = 0;
  return h("ol", { class: "timeline" }, events.map((event, index) => {
    const [tone, sign, words] = KINDS[event.kind] ?? ["quiet", "clock", event.kind];
    const isAttempt = !["enqueued", "due", "blocked"].includes(event.kind);
    if (isAttempt) attempt += 1;
    const seconds = event.ended_ms !== null && event.at_ms !== null ? (event.ended_ms - event.at_ms) / 1000
      : event.until_ms ? (event.until_ms - event.at_ms) / 1000 : null;
    return h("li", { class: `is-${tone}`, key: `${index}-${event.kind}` },
      h("span", { class: "timeline-mark" }, icon(sign)),
      h("div", { class: "timeline-body" },
        h("p", null, h("strong", null, isAttempt ? `Attempt ${attempt}: ${words.toLowerCase()}` : words), " ", when(event.at_ms ?? event.ended_ms)),
        h("p", { class: "hint" }, [event.at_ms !== null && exact(event.at_ms), seconds !== null && `took ${duration(Math.max(0, seconds))}`,
          event.worker && `on ${event.worker}`].filter(Boolean).join(" · ")),
        event.error && h("p", { class: "error-line" }, event.error)));
  }));
}

function progress(at) {
  const most = at.total ?? 0;
  return h("div", { class: "progress" }, most ? meter(at.done, most) : null,
    h("p", null, most ? `${count(at.done)} of ${count(most)}` : count(at.done), at.note ? ` · ${at.note}` : "", " · ", when(at.at_ms)));
}

function values(job, rerender) {
  const isOff = session.hidesValues;
  const toggle = !isOff && button(isHidden ? "Show" : "Hide", () => {
    isHidden = !isHidden;
    try {
      localStorage.setItem("rrq.hide", isHidden ? "1" : "");
    } catch {
      // The choice then holds for this page only.
    }
    rerender();
  }, { "aria-pressed": String(isHidden), "aria-label": isHidden ? "Show arguments and result" : "Hide arguments and result" });
  return h("section", { class: "card" },
    h("div", { class: "card-head" }, h("h2", null, "Arguments and result"), toggle),
    isOff ? h("p", { class: "hint" }, "This server does not show arguments and results (--hide-arguments).")
      : isHidden ? h("p", { class: "hint" }, "Hidden in this browser.")
      : [value("Arguments", job.args), value("Keyword arguments", job.kwargs), job.result && value("Result", job.result)]);
}

function value(name, shown) {
  return h("div", { class: "value", key: name }, h("h3", null, name), h("pre", { tabindex: "0" }, shown.text),
    shown.is_cut && h("p", { class: "hint" }, "Cut; rrq job show prints all of it."));
}

function readHidden() {
  try {
    return localStorage.getItem("rrq.hide") === "1";
  } catch {
    return false;
  }
}

function actions(job, reload, go) {
  const canCancel = ["PENDING", "RETRYING", "ACTIVE"].includes(job.status);
  return [
    canCancel && button("Cancel", async () => {
      const words = job.status === "ACTIVE" ? "It is running; its worker will cancel it." : "It will not run.";
      const answer = await ask({ title: "Cancel 1 job?", words: `${job.function} ${job.id}. ${words}`, confirm: "Cancel the job", danger: true });
      if (answer && (await carryOut("cancel-job", { id: job.id }))) reload();
    }, { class: "is-danger" }),
    job.is_dead_letter && button("Requeue", async () => {
      const answer = await ask({ title: "Requeue 1 job?", words: `${job.function} returns to ${job.queue}, with all its attempts again.`, confirm: "Requeue 1 job" });
      if (answer && (await carryOut("requeue-dead-letters", { id: job.id, expected: 1 }))) reload();
    }, { class: "primary" }),
    job.is_dead_letter && !session.hidesValues && !job.args.is_cut && !job.kwargs.is_cut && button("Edit and requeue", () => edit(job, reload)),
    job.is_dead_letter && button("Delete", async () => {
      const answer = await ask({ title: "Delete 1 dead letter?", words: `${job.function} ${job.id} is deleted. This cannot be undone.`, confirm: "Delete 1 job", danger: true });
      if (answer && (await carryOut("delete-dead-letters", { id: job.id, expected: 1 }))) go("dead");
    }, { class: "is-danger" }),
  ];
}

async function edit(job, reload) {
  const answer = await ask({
    title: "Edit and requeue 1 job", words: `${job.function} ${job.id} returns to its queue with these arguments.`, confirm: "Requeue with these arguments",
    fields: [
      { name: "args", label: "Arguments (JSON list)", long: true, rows: 4, value: job.args.text === "null" ? "[]" : job.args.text, check: checkJson(Array.isArray, "a list") },
      { name: "kwargs", label: "Keyword arguments (JSON object)", long: true, rows: 7, value: job.kwargs.text === "null" ? "{}" : job.kwargs.text,
        check: checkJson((read) => read !== null && typeof read === "object" && !Array.isArray(read), "an object") },
      { name: "queue", label: "Queue", value: job.queue ?? "" },
    ],
  });
  if (answer && (await carryOut("edit-dead-letter", { id: job.id, ...answer }))) reload();
}

function checkJson(isRight, kind) {
  return (text) => {
    try {
      return isRight(JSON.parse(text)) ? null : `This must be ${kind}.`;
    } catch (error) {
      return `This is not JSON: ${error.message}`;
    }
  };
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("The id is on the clipboard.");
  } catch {
    say("The browser does not allow copying; select the id instead.", "bad");
  }
}
