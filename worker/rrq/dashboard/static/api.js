// Talking to the server.

export class ApiError extends Error {
  constructor(status, body) {
    super(body.error ?? `The dashboard answered ${status}.`);
    this.status = status;
    this.isTrouble = Boolean(body.is_trouble);
  }
}

export const session = { role: null, actor: "", csrf: "", csrfHeader: "", takesTokens: false, hidesValues: false };

/** Read who the user is; false for a user who must sign in. */
export async function readSession() {
  const answer = await fetch("api/session", { cache: "no-store" });
  const state = await answer.json();
  session.takesTokens = state.takes_tokens;
  session.version = state.version;
  session.role = answer.ok ? state.role : null;
  session.actor = state.actor ?? "";
  session.csrf = state.csrf ?? "";
  session.csrfHeader = state.csrf_header ?? "";
  session.hasSession = Boolean(state.has_session);
  session.hidesValues = Boolean(state.hides_values);
  return answer.ok;
}

export const isAdmin = () => session.role === "admin";

export async function get(path, query, signal) {
  const known = Object.entries(query ?? {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(known).toString();
  return read(await fetch(`api/${path}${text ? "?" + text : ""}`, { signal, cache: "no-store" }));
}

async function post(path, body) {
  return fetch(`api/${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...(session.csrfHeader ? { [session.csrfHeader]: session.csrf } : {}) },
    body: JSON.stringify(body),
  });
}

/** Carry out an action; retries with a new CSRF token when the page has an old one. */
export async function act(name, order) {
  let answer = await post(`actions/${name}`, order);
  if (answer.status === 403) {
    const before = session.csrf;
    if ((await readSession()) && session.csrf !== before) answer = await post(`actions/${name}`, order);
  }
  return read(answer);
}

export const signIn = async (token, name) => read(await post("sign-in", { token, name }));
export const signOut = async () => read(await post("sign-out", {}));

async function read(answer) {
  let body = {};
  try {
    body = await answer.json();
  } catch {
    // A proxy in between may answer with a page of its own.
  }
  if (!answer.ok) throw new ApiError(answer.status, body);
  return body;
}
