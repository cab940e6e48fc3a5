// Named filters of a page, stored in this browser. Each is a chip; the current filters can be saved under a name.
import { html, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { filters } from "../lib/preferences.js";
import { address } from "../lib/router.js";
import { DialogForm } from "./dialog_form.js";
import { notify, openDialog } from "./dialog.js";
import { TextField } from "./field.js";
import { Menu } from "./menu.js";

const MAX_NAME_LENGTH = 40;

function stored() {
  try {
    return JSON.parse(filters.value) ?? {};
  } catch {
    return {}; // written by something else
  }
}

const savedOf = (page) => (Array.isArray(stored()[page]) ? stored()[page] : []);
const store = (page, all) => (filters.value = JSON.stringify({ ...stored(), [page]: all }));
const same = (one, other) => JSON.stringify(Object.entries(one).sort()) === JSON.stringify(Object.entries(other).sort());

/** page: path of the page; terms: the filters that are set now. */
export function SavedFilters({ page, terms }) {
  const all = savedOf(page);
  const current = all.find((one) => same(one.terms, terms));
  const isFiltered = Object.keys(terms).length > 0;
  if (!all.length && !isFiltered) return null;
  return html`<div class="saved" role="group" aria-label="Saved filters">
    ${all.map((one) => html`<span key=${one.name} class="saved-filter"><a class="chip" href=${address(page, one.terms)} aria-current=${one === current ? "true" : undefined}>
        <${Icon} name="bookmark" /> ${one.name}</a><${Menu} label=${`Change the filter: ${one.name}`} items=${[
          { text: "Rename…", icon: "edit", act: () => rename(page, one) },
          isFiltered && !current && { text: "Replace with the current filters", icon: "filter", act: () => replace(page, one, terms) },
          { text: "Delete", icon: "trash", tone: "bad", act: () => remove(page, one) },
        ]} /></span>`)}
    ${isFiltered && !current && html`<button type="button" class="quiet" onClick=${() => save(page, terms)}><${Icon} name="bookmark" /> Save filters…</button>`}</div>`;
}

function askName(title, verb, first, taken, act) {
  openDialog(title, function Name({ close }) {
    const [name, setName] = useState(first);
    const text = name.trim().slice(0, MAX_NAME_LENGTH);
    const faults = taken.includes(text) ? [{ detail: "There is already a filter with this name." }] : [];
    return html`<${DialogForm} close=${close} verb=${verb} ready=${text && !faults.length} act=${async () => { act(text); return true; }}>${() => html`
      <${TextField} label="Name" hint="saved in this browser only" value=${name} set=${setName} faults=${faults} />`}<//>`;
  });
}

const namesBut = (page, one) => savedOf(page).filter((other) => other !== one && other.name !== one?.name).map((other) => other.name);

function save(page, terms) {
  askName("Save these filters", "Save", "", namesBut(page), (name) => {
    store(page, [...savedOf(page), { name, terms }]);
    notify(`Saved the filters as ${name}`);
  });
}

function rename(page, one) {
  askName(`Rename ${one.name}`, "Rename", one.name, namesBut(page, one), (name) => store(page, savedOf(page).map((other) => (other.name === one.name ? { ...other, name } : other))));
}

function replace(page, one, terms) {
  const before = savedOf(page);
  store(page, before.map((other) => (other.name === one.name ? { ...other, terms } : other)));
  notify(`${one.name} now has the current filters`, { undo: () => store(page, before) });
}

function remove(page, one) {
  const before = savedOf(page);
  store(page, before.filter((other) => other.name !== one.name));
  notify(`Deleted the filter ${one.name}`, { undo: () => store(page, before) });
}
