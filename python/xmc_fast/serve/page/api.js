// Calls of the server, and small helpers of the page. No other host is contacted.

let token = "";

export const element = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const { attributes = {}, ...rest } = properties;
  const made = Object.assign(document.createElement(tag), rest);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export async function call(path, options = {}) {
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer.");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) element("login").hidden = false;
  const body = await answer.json().catch(() => ({}));
  throw new Error(body.detail || `The server answered with status ${answer.status}.`);
}

export const get = async (path) => (await call(path)).json();

export const post = async (path, body, signal) =>
  (await call(path, {
    method: "POST", body: JSON.stringify(body), signal, headers: { "Content-Type": "application/json" },
  })).json();

// Runs an action; what goes wrong is shown to the user.
export async function attempt(action) {
  try {
    const result = await action();
    element("problem").hidden = true;
    return result;
  } catch (error) {
    if (error.name === "AbortError") return undefined;
    element("problem").textContent = error.message;
    element("problem").hidden = false;
    return undefined;
  }
}

export function askForToken(then) {
  element("login").addEventListener("submit", (event) => {
    event.preventDefault();
    token = element("token").value.trim();
    element("login").hidden = true;
    then();
  });
}

export function debounce(action, milliseconds) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, milliseconds);
  };
}

export function download(name, parts) {
  const link = make("a", { href: URL.createObjectURL(new Blob(parts, { type: "text/csv" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
