// Keys of one letter and what they do: one list feeds the bindings and the sheet that explains them.
import { useEffect } from "./html.js";
import { go } from "./place.js";
import { shortcuts } from "./kept.js";

const known = new Map(); // key → [{what, act, group}], the last one wins
let first = "";
let timer = 0;

/** Bind keys while a part of the page is there: {key: [what, act]}; "g j" is one after the other. */
export function useKeys(bindings, group, deps = []) {
  useEffect(() => {
    const mine = Object.entries(bindings).map(([name, [what, act]]) => [name, { what, act, group }]);
    for (const [name, entry] of mine) known.set(name, [...(known.get(name) ?? []), entry]);
    return () => {
      for (const [name, entry] of mine) known.set(name, known.get(name).filter((other) => other !== entry));
    };
  }, deps);
}

export function sheet() {
  return [...known].flatMap(([name, entries]) => entries.slice(-1).map((entry) => ({ name, ...entry })));
}

export const PAGES = { o: ["", "Overview"], j: ["jobs", "Jobs"], f: ["workflows", "Workflows"], r: ["runs", "Runs"], d: ["dead-letters", "Dead letters"], c: ["calendar", "Calendar"], w: ["workers", "Workers & pools"], k: ["cluster", "Cluster"], t: ["tenants", "Tenants"], a: ["audit", "Audit"], s: ["settings", "Settings"] };
for (const [letter, [path, name]] of Object.entries(PAGES)) known.set(`g ${letter}`, [{ what: `go to ${name}`, act: () => go(path), group: "Pages" }]);

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) {
    if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") act("Mod+K", event);
    return;
  }
  if (document.querySelector("dialog[open]")) return; // Escape is the dialog's own then
  if (event.key === "Escape") return void act("Escape", event);
  if (typing || shortcuts.peek() === "off") return;
  const name = first ? `${first} ${event.key}` : event.key;
  clearTimeout(timer);
  first = "";
  if (act(name, event)) return;
  if ([...known.keys()].some((other) => other.startsWith(`${event.key} `))) {
    first = event.key;
    timer = setTimeout(() => (first = ""), 1200);
  }
});

function act(name, event) {
  const entry = known.get(name)?.at(-1);
  if (!entry) return false;
  event.preventDefault();
  entry.act(event);
  return true;
}
