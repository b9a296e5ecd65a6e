// Builds elements from data, and updates the elements on the screen to match them.
// Text always becomes text nodes, so job data cannot become markup.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "oninput", "onchange", "onsubmit", "onkeydown"];

/** Make an HTML element. `key` identifies it among its siblings; null, false and undefined are skipped. */
export function h(tag, props, ...children) {
  return build(document.createElement(tag), props, children);
}

/** Make an SVG element. */
export function s(tag, props, ...children) {
  return build(document.createElementNS(SVG, tag), props, children);
}

function build(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "key") element.dataset.key = value;
    else if (name.startsWith("on")) element[name] = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child instanceof Node) element.append(child);
    else if (child !== null && child !== undefined && child !== false) element.append(String(child));
  }
}

/** Change `from` to match `to`. Elements stay, and so do focus, selection and scroll position. */
export function morph(from, to) {
  if (from === to) return;
  if (from.nodeName !== to.nodeName || keyOf(from) !== keyOf(to)) {
    from.replaceWith(to);
    return;
  }
  if (from.nodeType === Node.TEXT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  morphAttributes(from, to);
  for (const name of HANDLERS) if (from[name] !== to[name]) from[name] = to[name];
  // Some elements manage their own content, and text that the user has typed stays.
  if ("own" in to.dataset || from.nodeName === "TEXTAREA") return;
  morphChildren(from, to);
  if (from.nodeName === "SELECT" && from !== document.activeElement && from.value !== to.value) from.value = to.value;
}

function morphAttributes(from, to) {
  // The user decides whether it is open.
  const kept = from.nodeName === "DETAILS" || from.nodeName === "DIALOG" ? "open" : null;
  for (const { name, value } of to.attributes) {
    if (name !== kept && from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    if (name !== kept && !to.hasAttribute(name)) from.removeAttribute(name);
  }
}

function morphChildren(from, to) {
  const wanted = new Set([...to.children].map(keyOf));
  const known = new Map();
  for (const child of [...from.children]) {
    const key = keyOf(child);
    if (!key) continue;
    if (wanted.has(key)) known.set(key, child);
    else child.remove();
  }
  let cursor = from.firstChild;
  for (const next of [...to.childNodes]) {
    const key = keyOf(next);
    const isLike = cursor && !keyOf(cursor) && cursor.nodeName === next.nodeName;
    const match = key ? known.get(key) : isLike ? cursor : null;
    if (!match) {
      from.insertBefore(next, cursor);
      continue;
    }
    if (match === cursor) cursor = cursor.nextSibling;
    else from.insertBefore(match, cursor);
    morph(match, next);
  }
  while (cursor) {
    const gone = cursor;
    cursor = cursor.nextSibling;
    gone.remove();
  }
}

function keyOf(node) {
  return node.dataset ? node.dataset.key : undefined;
}
