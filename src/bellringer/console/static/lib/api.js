// The public API, and nothing beside it: whatever the console can do, a program can do too.
import { key, tenant } from "./kept.js";
import { read, write } from "./json.js";
import { signal } from "./html.js";

export const ROOT = new URL("../api/v1/", document.baseURI);
export const locked = signal(false); // somebody has to log in
export const caller = signal(null); // who asks, as the server sees it

/** An answer that says what is wrong, as RFC 9457 has it. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.title ?? `the server answered ${status}`);
    Object.assign(this, { status, code: body.code ?? "", detail: body.detail ?? "", hint: body.hint ?? "", errors: body.errors ?? [], body });
  }
}

export function headers(more = {}) {
  const all = { Accept: "application/json", ...more };
  if (key.peek()) all.Authorization = `Bearer ${key.peek()}`;
  if (tenant.peek()) all["X-Tenant"] ??= tenant.peek();
  return all;
}

export function url(path, terms = {}) {
  const to = new URL(path.replace(/^\//, ""), ROOT);
  for (const [name, value] of Object.entries(terms)) {
    if (value !== undefined && value !== null && value !== "") to.searchParams.set(name, value);
  }
  return to;
}

/** Ask; answers {data, etag, headers}. A POST carries a key of its own, so that asking twice does it once. */
export async function ask(method, path, { terms, body, etag, signal: stop, more = {} } = {}) {
  const sent = { ...more };
  if (body !== undefined) sent["Content-Type"] = method === "PATCH" ? "application/merge-patch+json" : "application/json";
  if (etag) sent["If-Match"] = etag;
  if (method === "POST") sent["Idempotency-Key"] = crypto.randomUUID?.() ?? String(Math.random()).slice(2);
  let answer;
  try {
    answer = await fetch(url(path, terms), { method, headers: headers(sent), body: body === undefined ? undefined : write(body), signal: stop, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { title: "the server does not answer", hint: "is it running? is this machine on the network?" });
  }
  const text = await answer.text();
  const data = text && (answer.headers.get("content-type") ?? "").includes("json") ? read(text) : text;
  if (answer.status === 401) locked.value = true;
  if (!answer.ok) throw new Problem(answer.status, typeof data === "object" ? data : { title: data || answer.statusText });
  return { data, etag: answer.headers.get("etag"), headers: answer.headers, status: answer.status };
}

export const get = async (path, terms, stop) => (await ask("GET", path, { terms, signal: stop })).data;
export const post = async (path, body, terms) => (await ask("POST", path, { body, terms })).data;

/** A part of a path: names may hold anything. */
export const part = (text) => encodeURIComponent(text);

export async function whoami() {
  caller.value = await get("whoami");
  locked.value = false;
  return caller.value;
}

const RANKS = ["viewer", "operator", "editor", "admin"];
/** Whether the caller may do this; the server decides all the same. */
export const may = (role) => RANKS.indexOf(caller.value?.role ?? "viewer") >= RANKS.indexOf(role);
