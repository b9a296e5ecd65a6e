// Numbers and times for people.

import { h } from "./dom.js";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const NOTHING = "–";
let clockOffsetMs = 0;

/** Store the difference between the clocks of Redis and of this browser: ages use the clock of Redis. */
export function setServerTime(atMs) {
  clockOffsetMs = atMs - Date.now();
}

export function serverNow() {
  return Date.now() + clockOffsetMs;
}

export function count(number) {
  if (number === null || number === undefined) return NOTHING;
  return Math.abs(number) < 100_000 ? whole.format(number) : short.format(number);
}

export function rate(number) {
  if (number === null || number === undefined) return NOTHING;
  return number < 10 ? tenths.format(number) : count(number);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} days`;
}

/** A short form of a duration, for an axis or a large number. */
export function shortDuration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds === 0) return "0 s";
  if (seconds < 60) return duration(seconds);
  if (seconds < 3600) return `${tenths.format(seconds / 60)} min`;
  return seconds < 172_800 ? `${tenths.format(seconds / 3600)} h` : `${whole.format(seconds / 86_400)} d`;
}

/** The time relative to now. */
export function relative(atMs) {
  const seconds = (serverNow() - atMs) / 1000;
  const size = Math.abs(seconds);
  const words =
    size < 1 ? null :
    size < 60 ? `${Math.floor(size)} s` :
    size < 3600 ? `${Math.floor(size / 60)} min` :
    size < 172_800 ? `${Math.floor(size / 3600)} h` :
    `${Math.floor(size / 86_400)} days`;
  if (words === null) return "now";
  return seconds >= 0 ? `${words} ago` : `in ${words}`;
}

export function exact(atMs) {
  return new Date(atMs).toLocaleString("en-GB", {
    year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
    timeZoneName: "short",
  });
}

export function clock(atMs, withSeconds) {
  return new Date(atMs).toLocaleTimeString("en-GB", {
    hour: "2-digit", minute: "2-digit", second: withSeconds ? "2-digit" : undefined,
  });
}

/** A relative time, with the exact time as a tooltip. */
export function when(atMs) {
  if (atMs === null || atMs === undefined) return NOTHING;
  if (!Number.isFinite(atMs) || Math.abs(atMs) > 8.64e15) return "never";
  return h("time", { datetime: new Date(atMs).toISOString(), title: exact(atMs) }, relative(atMs));
}

export function plural(number, one, many) {
  return `${count(number)} ${number === 1 ? one : many ?? one + "s"}`;
}
