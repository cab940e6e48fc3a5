// Client for the public REST API. The console uses no other interface.
import { key, tenant } from "./preferences.js";
import { read, write } from "./json.js";
import { signal } from "./html.js";

export const ROOT = new URL("../api/v1/", document.baseURI);
export const loginRequired = signal(false); // the last request was not authenticated: show the login page
export const caller = signal(null); // the response of GET whoami

/** An error response: a problem document according to RFC 9457. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.title ?? `the server responded with status ${status}`);
    Object.assign(this, { status, code: body.code ?? "", detail: body.detail ?? "", hint: body.hint ?? "", errors: body.errors ?? [], body });
  }
}

export function headers(extraHeaders = {}) {
  const all = { Accept: "application/json", ...extraHeaders };
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

/** Sends a request and returns {data, etag, headers, status}. A POST carries a random Idempotency-Key, so a retry by the browser has no second effect. */
export async function request(method, path, { terms, body, etag, signal: stop, extraHeaders = {} } = {}) {
  const requestHeaders = { ...extraHeaders };
  if (body !== undefined) requestHeaders["Content-Type"] = method === "PATCH" ? "application/merge-patch+json" : "application/json";
  if (etag) requestHeaders["If-Match"] = etag;
  if (method === "POST") requestHeaders["Idempotency-Key"] = crypto.randomUUID?.() ?? String(Math.random()).slice(2);
  let response;
  try {
    response = await fetch(url(path, terms), { method, headers: headers(requestHeaders), body: body === undefined ? undefined : write(body), signal: stop, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { title: "the server does not respond", hint: "Check that it is running and that this machine has a network connection." });
  }
  const text = await response.text();
  const data = text && (response.headers.get("content-type") ?? "").includes("json") ? read(text) : text;
  if (response.status === 401) loginRequired.value = true;
  if (!response.ok) throw new Problem(response.status, typeof data === "object" ? data : { title: data || response.statusText });
  return { data, etag: response.headers.get("etag"), headers: response.headers, status: response.status };
}

export const get = async (path, terms, stop) => (await request("GET", path, { terms, signal: stop })).data;
export const post = async (path, body, terms) => (await request("POST", path, { body, terms })).data;

/** Encodes one segment of a path; names may contain any character. */
export const part = (text) => encodeURIComponent(text);

export async function whoami() {
  caller.value = await get("whoami");
  loginRequired.value = false;
  return caller.value;
}

const ROLES = ["viewer", "operator", "editor", "admin"];
/** Whether the caller has at least this role. Only for display: the server checks every request. */
export const may = (role) => ROLES.indexOf(caller.value?.role ?? "viewer") >= ROLES.indexOf(role);
