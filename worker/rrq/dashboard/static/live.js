// The stream of samples: one connection for each open page.

import { setServerTime } from "./format.js";

const KEPT_SAMPLES = 300;
const KEPT_MINUTES = 60;

export const live = {
  /** The newest sample; null before the first. */
  now: null,
  samples: [],
  minutes: [],
  /** Why the server cannot read Redis, or the page cannot reach the server; null without trouble. */
  trouble: null,
  onchange: () => {},
};

let source = null;

export function startLive() {
  stopLive();
  source = new EventSource("api/live");
  source.addEventListener("history", (event) => {
    const history = JSON.parse(event.data);
    live.minutes = history.minutes;
    live.samples = history.samples;
    take(live.samples[live.samples.length - 1]);
  });
  source.addEventListener("sample", (event) => {
    const sample = JSON.parse(event.data);
    live.samples.push(sample);
    if (live.samples.length > KEPT_SAMPLES) live.samples.shift();
    addMinutes(sample);
    take(sample);
  });
  source.addEventListener("trouble", (event) => {
    const trouble = JSON.parse(event.data);
    live.trouble = { words: trouble.words, sinceMs: trouble.since_ms };
    live.onchange();
  });
  source.onerror = () => {
    live.trouble = { words: "The dashboard server does not answer; trying again.", sinceMs: live.now?.at_ms ?? null };
    live.onchange();
    // The browser reconnects by itself, except after a refusal.
    if (source?.readyState === EventSource.CLOSED) setTimeout(startLive, 3000);
  };
}

export function stopLive() {
  source?.close();
  source = null;
}

function take(sample) {
  if (!sample) return;
  live.now = sample;
  live.trouble = null;
  setServerTime(sample.at_ms);
  live.onchange();
}

function addMinutes(sample) {
  for (const minute of sample.minutes) {
    const known = live.minutes.find((kept) => kept.at_ms === minute.at_ms);
    const entry = known ?? { due: null, running: null };
    Object.assign(entry, minute);
    if (minute === sample.minutes[sample.minutes.length - 1]) {
      entry.due = Math.max(entry.due ?? 0, sample.due);
      entry.running = Math.max(entry.running ?? 0, sample.running);
    }
    if (!known) live.minutes.push(entry);
  }
  live.minutes = live.minutes.slice(-KEPT_MINUTES);
}
