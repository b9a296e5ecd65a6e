// A limit as text.

import { count } from "./format.js";

export function limitWords(limit) {
  const parts = [];
  if (limit.concurrency !== null && limit.concurrency !== undefined) parts.push(`${count(limit.concurrency)} at once`);
  if (limit.per_key) parts.push(`${count(limit.per_key)} at once per ${limit.key ?? "key"}`);
  if (limit.rate) {
    const seconds = limit.per_seconds ?? 1;
    const period = { 1: "second", 60: "minute", 3600: "hour" }[seconds] ?? `${seconds} s`;
    parts.push(`${count(limit.rate)} per ${period}${limit.burst ? `, bursts of ${count(limit.burst)}` : ""}`);
  }
  return parts.join("; ") || "none";
}
