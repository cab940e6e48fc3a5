// Small parts that every page is made of.
import { html, useEffect, useId, useRef, useState } from "../lib/html.js";
import { address, go } from "../lib/place.js";
import { fromNow, full } from "../lib/time.js";
import { write } from "../lib/json.js";

export const Link = ({ to, terms, children, ...more }) => html`<a href=${address(to, terms)} ...${more}>${children}</a>`;

/** An instant: relative, and in full when pointed at. */
export function When({ at, job, short = true }) {
  if (!at) return html`<span class="mute">–</span>`;
  return html`<time datetime=${at} title=${full(at, job)}>${short ? fromNow(at) : full(at, job)}</time>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

/** What went wrong, with what to do about it, and a way to try again. */
export function Trouble({ error, again }) {
  if (!error) return null;
  return html`<div class="trouble" role="alert">
    <strong>${error.message}</strong>
    ${error.detail && html`<p>${error.detail}</p>`}${error.hint && html`<p>${error.hint}</p>`}
    ${error.errors?.map((one) => html`<p><code>${one.pointer}</code> ${one.detail ?? one.message}</p>`)}
    ${again && html`<button type="button" onClick=${again}>Try again</button>`}
  </div>`;
}

/** What is there while it is read for the first time, or what is wrong. */
export function Loading({ of, children }) {
  if (of.data !== undefined) return html`${of.error && html`<${Trouble} error=${of.error} again=${of.again} />`}${children(of.data)}`;
  if (of.error) return html`<${Trouble} error=${of.error} again=${of.again} />`;
  return html`<p class="loading" aria-busy="true">Reading …</p>`;
}

/** JSON as text: exact, and never as markup. */
export const Json = ({ value, label }) => html`<pre class="json" tabindex="0" aria-label=${label}>${write(value, 2) ?? "null"}</pre>`;

export function Facts({ of }) {
  return html`<dl class="facts">${of.filter(Boolean).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value ?? "–"}</dd></div>`)}</dl>`;
}

export function Card({ title, children, aside, wide = false }) {
  const id = useId();
  return html`<section class="card ${wide ? "wide" : ""}" aria-labelledby=${id}><header><h2 id=${id}>${title}</h2>${aside}</header>${children}</section>`;
}

/** Tabs whose choice is in the address. */
export function Tabs({ tabs, chosen, choose }) {
  function move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const names = Object.keys(tabs);
    const next = names[(names.indexOf(chosen) + step + names.length) % names.length];
    choose(next);
    event.currentTarget.querySelector(`[data-tab="${next}"]`)?.focus();
  }
  return html`<div class="tabs" role="tablist" onKeyDown=${move}>
    ${Object.entries(tabs).map(([name, title]) => html`<button type="button" role="tab" data-tab=${name} aria-selected=${name === chosen} tabindex=${name === chosen ? 0 : -1} onClick=${() => choose(name)}>${title}</button>`)}
  </div>`;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = Object.assign(document.createElement("textarea"), { value: text }); // plain HTTP has no clipboard
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** "Copy as": the same as a command and as a request, so that what is done here can be done by a program. */
export function CopyAs({ cli, method = "GET", path, body }) {
  const [done, tell] = useState("");
  const said = useRef(0);
  useEffect(() => () => clearTimeout(said.current), []);
  async function take(name, text) {
    await copy(text);
    tell(`${name} copied`);
    said.current = setTimeout(() => tell(""), 1500);
  }
  const to = new URL(`../api/v1/${path.replace(/^\//, "")}`, document.baseURI);
  const data = body === undefined ? "" : ` -H 'Content-Type: application/json' -d '${write(body).replaceAll("'", "'\\''")}'`;
  const curl = `curl ${method === "GET" ? "" : `-X ${method} `}'${to}' -H "Authorization: Bearer $BELLRINGER_KEY"${data}`;
  return html`<span class="copy-as" role="group" aria-label="copy as">
    ${cli && html`<button type="button" class="quiet" title=${cli} onClick=${() => take("command", cli)}>Copy CLI</button>`}
    <button type="button" class="quiet" title=${curl} onClick=${() => take("curl", curl)}>Copy curl</button>
    <span role="status" class="mute">${done}</span>
  </span>`;
}

/** A list's next page. */
export const More = ({ cursor, onMore, busy }) => cursor && html`<p class="more"><button type="button" disabled=${busy} onClick=${onMore}>Show more</button></p>`;

export const open = (path, terms) => () => go(path, terms);
