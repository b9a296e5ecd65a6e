// Runs before the first paint, so that nobody who chose a theme sees the other one flash up.
"use strict";
try {
  const chosen = localStorage.getItem("rrq.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that keeps nothing follows the system.
}
