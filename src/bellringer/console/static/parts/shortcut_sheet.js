// The list of keyboard shortcuts of the open page.
import { html } from "../lib/html.js";
import { shortcuts } from "../lib/preferences.js";
import { keyNames, listShortcuts } from "../lib/shortcuts.js";
import { openDialog } from "./dialog.js";

const FIRST = ["Everywhere", "Pages"];

/** The shortcuts by group: those of every page first, then those of this page. */
function groups() {
  const all = new Map();
  for (const entry of listShortcuts()) all.set(entry.group, [...(all.get(entry.group) ?? []), entry]);
  return [...FIRST.filter((name) => all.has(name)), ...[...all.keys()].filter((name) => !FIRST.includes(name))].map((name) => [name, all.get(name)]);
}

const TITLES = { Everywhere: "On every page", Pages: "Go to a page" };

function Keys({ name }) {
  const isSequence = name.includes(" ");
  return keyNames(name).map((one, n) => html`${n > 0 && isSequence && html`<span class="mute"> then </span>`}<kbd>${one}</kbd> `);
}

function Sheet({ close }) {
  return html`<div class="sheet">
    <div class="sheet-groups">${groups().map(([group, entries]) => html`<section key=${group}><h3>${TITLES[group] ?? group}</h3>
      <dl>${entries.map((entry) => html`<div key=${entry.name}><dt><${Keys} name=${entry.name} /></dt><dd>${entry.what}</dd></div>`)}</dl></section>`)}</div>
    <label><input type="checkbox" checked=${shortcuts.value === "on"} onChange=${() => (shortcuts.value = shortcuts.value === "on" ? "off" : "on")} /> Enable single-key shortcuts</label>
    <div class="actions"><button type="button" autofocus onClick=${close}>Close</button></div>
  </div>`;
}

export const openShortcutSheet = () => openDialog("Keyboard shortcuts", Sheet);
