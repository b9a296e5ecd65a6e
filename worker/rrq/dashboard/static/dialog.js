// Dialogs that ask before something is changed.

import { act, ApiError } from "./api.js";
import { h } from "./dom.js";
import { button, say } from "./ui.js";

/** Show a dialog; resolves with the values of its fields, or null. fields: [{ name, label, value, hint, long, check(text) }] */
export function ask({ title, words, confirm, danger = false, fields = [] }) {
  return new Promise((resolve) => {
    const problem = h("p", { class: "problem", role: "alert" });
    const inputs = fields.map((field) => {
      const id = `field-${field.name}`;
      const input = field.long
        ? h("textarea", { id, rows: field.rows ?? 6, spellcheck: "false" }, field.value ?? "")
        : h("input", { id, type: field.type ?? "text", value: field.value ?? "", autocomplete: "off" });
      return { field, input, row: h("div", { class: "field" }, h("label", { for: id }, field.label), input,
        field.hint && h("p", { class: "hint" }, field.hint)) };
    });
    const form = h("form", { method: "dialog" },
      h("h2", { id: "dialog-title" }, title), h("p", { class: "dialog-words" }, words),
      inputs.map(({ row }) => row), problem,
      h("div", { class: "dialog-buttons" },
        button("Keep as it is", () => finish(null)),
        h("button", { type: "submit", class: danger ? "primary is-danger" : "primary" }, confirm)));
    const dialog = h("dialog", { class: "dialog", "aria-labelledby": "dialog-title" }, form);
    const finish = (answer) => {
      dialog.close();
      dialog.remove();
      resolve(answer);
    };
    dialog.oncancel = (event) => {
      event.preventDefault();
      finish(null);
    };
    form.onsubmit = (event) => {
      event.preventDefault();
      const answer = {};
      for (const { field, input } of inputs) {
        const wrong = field.check?.(input.value);
        if (wrong) {
          problem.textContent = wrong;
          input.focus();
          return;
        }
        answer[field.name] = input.value;
      }
      finish(answer);
    };
    document.body.append(dialog);
    dialog.showModal();
    (inputs[0]?.input ?? form.querySelector(".dialog-buttons button")).focus();
  });
}

/** Carry out an action and show the outcome; true when it succeeded. */
export async function carryOut(name, order) {
  try {
    const done = await act(name, order);
    say(done.words);
    return true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    say(error.message, "bad");
    return false;
  }
}

/** Return how many jobs an action would affect; null when the server refuses. */
export async function countAffected(name, order) {
  try {
    return (await act(name, { ...order, dry_run: true })).affected;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    say(error.message, "bad");
    return null;
  }
}

export function showKeys(keys) {
  const close = () => {
    dialog.close();
    dialog.remove();
  };
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "dialog-title" },
    h("h2", { id: "dialog-title" }, "Keys"),
    h("dl", { class: "keys" }, keys.map(([names, words]) => h("div", null,
      h("dt", null, names.split(" ").map((name) => h("kbd", null, name))), h("dd", null, words)))),
    h("div", { class: "dialog-buttons" }, button("Close", close, { class: "primary" })));
  dialog.oncancel = (event) => {
    event.preventDefault();
    close();
  };
  document.body.append(dialog);
  dialog.showModal();
}
