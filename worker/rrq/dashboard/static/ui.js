// Small elements that all pages share.

import { h, s } from "./dom.js";
import { count } from "./format.js";

const ICONS = {
  overview: "M3 12.5 7 8l3 3 6-7M3 16.5h14",
  queues: "M4 5.5h12M4 10h12M4 14.5h7",
  pools: "M4 16V9m4 7V4m4 12v-5m4 5V7",
  workers: "M5 5h10v10H5zM8 2.5v2.5m4-2.5v2.5M8 15v2.5m4-2.5v2.5M2.5 8H5m-2.5 4H5m10-4h2.5M15 12h2.5",
  jobs: "M5 3.5h7l3.5 3.5v9.5h-10.5zM8 10h5m-5 3h5",
  dead: "M10 3.5 17.5 16.5h-15zM10 8.5v4m0 1.9v.1",
  cron: "M10 3a7 7 0 1 0 .01 0M10 6v4l2.8 1.8",
  controls: "M4 6h12M4 14h12M8 4v4m5 4v4",
  audit: "M4 4h12v12H4zM7 8h6M7 12h4",
  sun: "M10 6.5a3.5 3.5 0 1 0 .01 0M10 1.8v1.6m0 13.2v1.6M1.8 10h1.6m13.2 0h1.6M4.2 4.2l1.1 1.1m9.4 9.4 1.1 1.1m0-11.6-1.1 1.1m-9.4 9.4-1.1 1.1",
  menu: "M3.5 5.5h13M3.5 10h13M3.5 14.5h13",
  pause: "M7 5v10M13 5v10",
  play: "M7 4.5v11l8.5-5.5z",
  check: "M4.5 10.5 8.5 14.5 15.5 6",
  cross: "M5.5 5.5l9 9m0-9-9 9",
  again: "M15.5 9a5.7 5.7 0 1 0-1 5M15.7 4.5V9h-4.4",
  clock: "M10 3a7 7 0 1 0 .01 0M10 6v4.3",
  hand: "M4.5 10h11M11 5.5l4.5 4.5-4.5 4.5",
};

export function icon(name) {
  return s("svg", { class: "icon", viewBox: "0 0 20 20", "aria-hidden": "true" }, s("path", { d: ICONS[name] }));
}

const STATUSES = {
  PENDING: ["quiet", "clock", "pending"],
  RETRYING: ["warn", "again", "retrying"],
  ACTIVE: ["info", "play", "running"],
  COMPLETED: ["ok", "check", "done"],
  FAILED: ["bad", "cross", "failed"],
  CANCELLED: ["quiet", "cross", "cancelled"],
};

export function status(name) {
  const [tone, sign, words] = STATUSES[name] ?? ["quiet", "clock", String(name).toLowerCase()];
  return pill(tone, sign, words);
}

/** A word with a colour and a sign; the sign helps users who cannot distinguish the colours. */
export function pill(tone, sign, words, title) {
  return h("span", { class: `pill is-${tone}`, title }, icon(sign), words);
}

export function pausePill(pause) {
  if (!pause) return null;
  const title = [pause.by && `by ${pause.by}`, pause.reason].filter(Boolean).join(": ");
  return pill("warn", "pause", pause.state, title);
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title && h("h2", null, title), ...children);
}

/** What an empty list shows, and what to do about it. */
export function empty(title, ...words) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", null, ...words));
}

export function code(text) {
  return h("code", null, text);
}

/** columns: [{ name, cell(row), align, wide }]; the link of the first cell opens the row. */
export function table({ label, columns, rows, key, href }) {
  return h("div", { class: "table-wrap" },
    h("table", { "aria-label": label, "data-list": true },
      h("thead", null, h("tr", null, columns.map((column) =>
        h("th", { scope: "col", class: column.align === "end" ? "end" : null }, column.name)))),
      h("tbody", null, rows.map((row) => h("tr", { key: key(row), class: href ? "is-link" : null },
        columns.map((column, index) => {
          const inside = column.cell(row);
          const linked = index === 0 && href ? h("a", { class: "row-link", href: href(row) }, inside) : inside;
          return h("td", {
            "data-label": column.name || null,
            class: [column.align === "end" && "end", column.wide && "wide"].filter(Boolean).join(" ") || null,
          }, linked);
        }))))));
}

export function button(words, onclick, props) {
  return h("button", { type: "button", onclick, ...props }, words);
}

/** An important number. */
export function tile({ name, value, unit, note, tone, spark, href }) {
  return h(href ? "a" : "div", { class: `tile${tone ? " is-" + tone : ""}`, href, key: `tile-${name}` },
    h("span", { class: "tile-name" }, name),
    h("span", { class: "tile-value" }, value, unit && h("small", null, ` ${unit}`)),
    spark,
    h("span", { class: "tile-note" }, note));
}

export function meter(value, most, label) {
  const part = most > 0 ? Math.min(1, value / most) : 0;
  return h("span", { class: "meter", role: "img", "aria-label": label ?? `${count(value)} of ${count(most)}` },
    s("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
      s("rect", { class: "meter-back", width: 100, height: 6 }),
      s("rect", { class: part >= 1 ? "meter-fill is-full" : "meter-fill", width: (part * 100).toFixed(1), height: 6 })));
}

/** Show a message on the screen for a while, and read it to screen readers. */
export function say(words, tone = "ok") {
  document.getElementById("said").textContent = words;
  const toast = h("div", { class: `toast is-${tone}` }, icon(tone === "bad" ? "cross" : "check"), words);
  document.getElementById("toasts").append(toast);
  setTimeout(() => toast.remove(), 6000);
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", null, value))));
}
