// Runs before the first paint, so that the wrong theme never flashes up.
"use strict";
try {
  const chosen = localStorage.getItem("rrq.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Without stored settings the page follows the system.
}
