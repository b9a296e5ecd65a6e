// The frame around the pages: route, live state, keys.

import { ApiError, readSession, session, signIn, signOut } from "./api.js";
import { showKeys } from "./dialog.js";
import { h, morph } from "./dom.js";
import { clock, count } from "./format.js";
import { live, startLive, stopLive } from "./live.js";
import audit from "./pages/audit.js";
import controls from "./pages/controls.js";
import cron from "./pages/cron.js";
import dead from "./pages/dead.js";
import jobs from "./pages/jobs.js";
import overview from "./pages/overview.js";
import pools from "./pages/pools.js";
import queues from "./pages/queues.js";
import workers from "./pages/workers.js";
import { button, card, empty, icon, say } from "./ui.js";

const PAGES = { overview, queues, pools, workers, jobs, dead, cron, controls, audit };
const GO_KEYS = { o: "overview", q: "queues", p: "pools", w: "workers", j: "jobs", d: "dead", c: "cron", f: "controls", a: "audit" };
const KEYS = [
  ["/", "Filter the list"], ["↑ ↓", "Move in a list"], ["Enter", "Open the selected row"], ["Esc", "Leave a filter or a dialog"],
  ...Object.entries(GO_KEYS).map(([key, name]) => [`g ${key}`, PAGES[name].title]),
  ["t", "Light or dark"], ["?", "Show these keys"],
];

const view = { name: "overview", path: [], params: {}, data: null, error: null, state: {}, loading: 0, isMenuOpen: false, needsSignIn: false };
let timer = null;
let controller = null;
let goPressedAt = 0;

// The route

function parseRoute() {
  const [route, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...path] = route.split("/").filter(Boolean);
  return { name: PAGES[name] ? name : "overview", path, params: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

function go(route, params) {
  const known = Object.entries(params ?? {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(known).toString();
  location.hash = `#/${route}${query ? "?" + query : ""}`;
}

function navigate() {
  const route = parseRoute();
  const isOther = route.name !== view.name;
  const isSameList = !isOther && route.path.join("/") === view.path.join("/");
  Object.assign(view, route, { data: isSameList ? view.data : null, error: null, isMenuOpen: false, state: isOther ? {} : view.state });
  document.title = `${PAGES[view.name].title} · RRQ`;
  render();
  if (!isSameList) {
    window.scrollTo(0, 0);
    document.getElementById("said").textContent = PAGES[view.name].title;
  }
  load();
}

// The content

async function load() {
  clearTimeout(timer);
  controller?.abort();
  const page = PAGES[view.name];
  if (!page.load || view.needsSignIn) return;
  const mine = (controller = new AbortController());
  try {
    const data = await page.load(view.params, mine.signal, view.path);
    if (mine.signal.aborted) return;
    Object.assign(view, { data, error: null });
  } catch (error) {
    if (mine.signal.aborted) return;
    if (error instanceof ApiError && error.status === 401) return askToSignIn();
    // The last data stays; the banner says that it is old.
    if (!(error instanceof ApiError && error.isTrouble) || !view.data) view.error = error;
  }
  render();
  if (page.refreshMs) timer = setTimeout(load, document.hidden ? page.refreshMs * 10 : page.refreshMs);
}

function render() {
  if (view.needsSignIn) return;
  const root = document.getElementById("app");
  const page = PAGES[view.name];
  const context = { data: view.data, path: view.path, params: view.params, state: view.state, go, rerender: render, reload: load };
  const content = view.error && !view.data ? problem(view.error)
    : page.load && !view.data ? h("p", { class: "loading" }, "Loading…") : page.render(context);
  const next = h("div", { id: "app", class: "frame" }, sidebar(), h("div", { class: "body" }, topbar(page), banner(),
    h("main", { id: "main", tabindex: "-1", class: live.trouble ? "is-stale" : null },
      h("div", { key: `${view.name}/${view.path.join("/")}` }, content))));
  morph(root, next);
  page.mounted?.(document.getElementById("main"));
}

function problem(error) {
  if (error instanceof ApiError && error.status === 404) return card(null, empty("Not found", error.message));
  return card(null, empty("This cannot be shown now", error.message));
}

function sidebar() {
  return h("header", { class: view.isMenuOpen ? "side is-open" : "side" },
    h("a", { class: "brand", href: "#/overview" }, h("img", { src: "static/icon.svg", alt: "", width: 28, height: 28 }), "RRQ"),
    button(icon("menu"), () => {
      view.isMenuOpen = !view.isMenuOpen;
      render();
    }, { class: "menu", "aria-label": "Menu", "aria-expanded": String(view.isMenuOpen) }),
    h("nav", { "aria-label": "Pages" }, h("ul", null, Object.entries(PAGES).map(([name, page]) =>
      h("li", null, h("a", { href: `#/${name}`, "aria-current": view.name === name ? "page" : null }, icon(name), page.title, badge(name)))))),
    h("div", { class: "side-foot" },
      h("p", { class: "who", title: session.actor }, session.actor, h("small", null, session.role)),
      session.hasSession ? button("Sign out", leave) : session.takesTokens && button("Sign in", askToSignIn)));
}

function badge(name) {
  const number = { dead: live.now?.dead_letters, controls: live.now?.paused }[name];
  return number ? h("span", { class: `badge is-${name === "dead" ? "bad" : "warn"}` }, count(number)) : null;
}

function topbar(page) {
  return h("div", { class: "top" }, h("h1", null, page.title),
    h("p", { class: live.trouble ? "beat is-old" : "beat" }, h("span", { class: "beat-dot", "aria-hidden": "true" }),
      live.trouble ? "not live" : live.now ? ["live ", h("time", null, clock(live.now.at_ms, true))] : "connecting"),
    button(icon("sun"), switchTheme, { class: "ghost", "aria-label": "Light or dark", title: "Light or dark (t)" }),
    button("?", () => showKeys(KEYS), { class: "ghost", "aria-label": "Keys", title: "Keys (?)" }));
}

function banner() {
  if (!live.trouble) return h("div", { class: "banner", role: "status", hidden: true });
  const since = live.trouble.sinceMs ? `The page shows the state of ${clock(live.trouble.sinceMs, true)}. ` : "";
  return h("div", { class: "banner", role: "status" }, icon("dead"), h("p", null, h("strong", null, "Not live. "), since, live.trouble.words));
}

// The session

function askToSignIn() {
  view.needsSignIn = true;
  stopLive();
  clearTimeout(timer);
  const problem = h("p", { class: "problem", role: "alert" });
  const form = h("form", { class: "card sign-in", onsubmit: async (event) => {
    event.preventDefault();
    const { token, name } = form.elements;
    try {
      await signIn(token.value.trim(), name.value.trim());
      token.value = "";
      start();
    } catch (error) {
      problem.textContent = error.message;
      token.focus();
      token.select();
    }
  } },
    h("h1", null, h("img", { src: "static/icon.svg", alt: "", width: 32, height: 32 }), "Sign in to RRQ"),
    session.takesTokens ? [
      h("div", { class: "field" }, h("label", { for: "token" }, "Token"), h("input", { id: "token", name: "token", type: "password", autocomplete: "current-password", required: true })),
      h("div", { class: "field" }, h("label", { for: "name" }, "Your name"), h("input", { id: "name", name: "name", autocomplete: "username" }),
        h("p", { class: "hint" }, "For the audit of your changes.")),
      problem,
      h("button", { type: "submit", class: "primary" }, "Sign in"),
      session.role && button("Continue as viewer", start),
    ] : h("p", null, "The proxy in front of this dashboard did not name a user. Open the dashboard at the address of the proxy."));
  document.title = "Sign in · RRQ";
  document.getElementById("app").replaceWith(h("div", { id: "app", class: "sign-in-frame" }, h("main", { id: "main" }, form)));
  document.getElementById("token")?.focus();
}

async function leave() {
  await signOut();
  start();
}

// Keys

function isTyping(target) {
  return target.closest("input, textarea, select, [contenteditable]") !== null;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || view.needsSignIn || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && isTyping(event.target)) return event.target.blur();
  if (event.key === "ArrowDown" && event.target.matches("[data-filter]")) return moveIn(document.getElementById("main"), 1, event);
  if (isTyping(event.target)) return;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    if (event.target.closest("nav, .chart-plot")) return;
    return moveIn(document.getElementById("main"), event.key === "ArrowDown" ? 1 : -1, event);
  }
  const isAfterGo = Date.now() - goPressedAt < 1500;
  goPressedAt = 0;
  if (isAfterGo && GO_KEYS[event.key]) go(GO_KEYS[event.key]);
  else if (event.key === "g") goPressedAt = Date.now();
  else if (event.key === "/") {
    event.preventDefault();
    const filter = document.querySelector("[data-filter]");
    if (filter) filter.focus();
    else go("jobs");
  } else if (event.key === "?") showKeys(KEYS);
  else if (event.key === "t") switchTheme();
}

function moveIn(root, by, event) {
  const links = [...root.querySelectorAll("[data-list] .row-link")];
  if (!links.length) return;
  event.preventDefault();
  const at = links.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + by));
  links[next].focus();
}

function switchTheme() {
  const isDark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = isDark ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("rrq.theme", theme);
  } catch {
    // The choice then holds for this page only.
  }
  say(`${theme} theme`);
}

// The start

async function start() {
  const before = document.getElementById("app");
  if (before.className !== "frame") before.replaceWith(h("div", { id: "app", class: "frame" }));
  view.needsSignIn = false;
  try {
    if (!(await readSession())) return askToSignIn();
  } catch {
    setTimeout(start, 2000);
    return;
  }
  live.onchange = render;
  startLive();
  navigate();
}

addEventListener("hashchange", navigate);
addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !view.needsSignIn) load();
});
start();
