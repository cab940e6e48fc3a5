// Small components used by all pages.
import { html, useEffect, useId, useRef, useState } from "../lib/html.js";
import { address, navigate } from "../lib/router.js";
import { formatAge, formatTime, fromNow, now } from "../lib/time.js";
import { write } from "../lib/json.js";

export { CopyAs } from "./copy_as.js";

export const Link = ({ to, terms, children, ...more }) => html`<a href=${address(to, terms)} ...${more}>${children}</a>`;

/** An instant, relative to now; the tooltip shows the full time. */
export function Time({ at, job, short = true }) {
  if (!at) return html`<span class="mute">–</span>`;
  return html`<time datetime=${at} title=${formatTime(at, job)}>${short ? fromNow(at) : formatTime(at, job)}</time>`;
}

/** How long something has lasted: "for 20m"; the tooltip shows when it began. */
export function Lasting({ since }) {
  const seconds = Math.max(1, Math.round((now.value - new Date(since)) / 1000));
  return html`<time datetime=${since} title=${`since ${formatTime(since)}`}>for ${formatAge(seconds)}</time>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

/** An error with its hint, and a button to retry. */
export function ErrorMessage({ error, reload }) {
  if (!error) return null;
  return html`<div class="trouble" role="alert">
    <strong>${error.message}</strong>
    ${error.detail && html`<p>${error.detail}</p>`}${error.hint && html`<p>${error.hint}</p>`}
    ${error.errors?.map((one) => html`<p><code>${one.pointer}</code> ${one.detail ?? one.message}</p>`)}
    ${reload && html`<button type="button" onClick=${reload}>Try again</button>`}
  </div>`;
}

const SKELETONS = { lines: 3, table: 8, cards: 3, page: 5 };

/** Placeholder in the shape of what is loading, so that the page does not jump. shape: lines, table, cards or page; `rows`: how many. */
export function Skeleton({ shape = "lines", rows = SKELETONS[shape] }) {
  return html`<div class="skeleton ${shape}" aria-busy="true"><span class="unseen">Loading…</span>
    ${Array.from({ length: rows }, (_, n) => html`<span key=${n} class="bone" aria-hidden="true"></span>`)}</div>`;
}

/** Shows a placeholder until the first data arrives, and errors. `shape` and `rows`: see `Skeleton`. */
export function Loading({ of, shape, rows, children }) {
  if (of.data !== undefined) return html`${of.error && html`<${ErrorMessage} error=${of.error} reload=${of.reload} />`}${children(of.data)}`;
  if (of.error) return html`<${ErrorMessage} error=${of.error} reload=${of.reload} />`;
  return html`<${Skeleton} shape=${shape} rows=${rows} />`;
}

/** JSON as plain text. */
export const Json = ({ value, label }) =>
  html`<pre class="json" tabindex="0" aria-label=${label}>${write(withoutCiphertexts(value), 2) ?? "null"}</pre>`;

/** The value with a short text in place of each encrypted one: nobody can read the ciphertext. */
function withoutCiphertexts(value) {
  if (!value || typeof value !== "object" || !(Array.isArray(value) || Object.getPrototypeOf(value) === Object.prototype)) return value;
  if (Array.isArray(value)) return value.map(withoutCiphertexts);
  const sealed = Object.keys(value).length === 1 && value.$encrypted;
  if (sealed && typeof sealed === "object") return `encrypted with the key ${sealed.key}`;
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, withoutCiphertexts(inner)]));
}

export function DescriptionList({ of }) {
  return html`<dl class="facts">${of.filter(Boolean).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value ?? "–"}</dd></div>`)}</dl>`;
}

export function Card({ title, children, aside, wide = false }) {
  const id = useId();
  return html`<section class="card ${wide ? "wide" : ""}" aria-labelledby=${id}><header><h2 id=${id}>${title}</h2>${aside}</header>${children}</section>`;
}

/** Tabs; the selected tab is part of the URL. */
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
    const area = Object.assign(document.createElement("textarea"), { value: text }); // the clipboard API needs HTTPS
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** Button that loads the next page of a list. */
export const MoreButton = ({ cursor, onMore, busy }) => cursor && html`<p class="more"><button type="button" disabled=${busy} onClick=${onMore}>Show more</button></p>`;

export const open = (path, terms) => () => navigate(path, terms);
