// Keyboard shortcuts. The help sheet lists the same bindings.
import { useEffect } from "./html.js";
import { navigate } from "./router.js";
import { shortcuts } from "./preferences.js";

const isApple = /Mac|iPhone|iPad/.test(navigator.userAgentData?.platform ?? navigator.platform);

const KEY_NAMES = {
  Mod: isApple ? "⌘" : "Ctrl", Escape: isApple ? "esc" : "Esc", Enter: isApple ? "return" : "Enter", ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→",
};

/** The keys of a shortcut, as they are called on this platform: "Mod+K" → ["⌘", "K"] or ["Ctrl", "K"]; "g j" → ["g", "j"]. */
export const keyNames = (name) => (name === "+" ? [name] : name.split(/[+ ]/).map((one) => KEY_NAMES[one] ?? one));

const registered = new Map(); // key → [{what, act, group}]; the last entry is active
let pendingKey = "";
let timer = 0;

/** Binds keys while a component is mounted: {key: [description, action]}. "g j" is a sequence of two keys. */
export function useShortcuts(bindings, group, deps = []) {
  useEffect(() => {
    const mine = Object.entries(bindings).map(([name, [what, act]]) => [name, { what, act, group }]);
    for (const [name, entry] of mine) registered.set(name, [...(registered.get(name) ?? []), entry]);
    return () => {
      for (const [name, entry] of mine) registered.set(name, registered.get(name).filter((other) => other !== entry));
    };
  }, deps);
}

export function listShortcuts() {
  return [...registered].flatMap(([name, entries]) => entries.slice(-1).map((entry) => ({ name, ...entry })));
}

export const PAGES = { o: ["", "Overview"], j: ["jobs", "Jobs"], f: ["workflows", "Workflows"], r: ["runs", "Runs"], d: ["dead-letters", "Dead letters"], c: ["calendar", "Calendar"], w: ["workers", "Workers & pools"], k: ["cluster", "Cluster"], t: ["tenants", "Tenants"], a: ["audit", "Audit"], s: ["settings", "Settings"] };
for (const [letter, [path, name]] of Object.entries(PAGES)) registered.set(`g ${letter}`, [{ what: `go to ${name}`, act: () => navigate(path), group: "Pages" }]);

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) {
    if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") act("Mod+K", event);
    return;
  }
  if (document.querySelector("dialog[open]")) return; // the dialog handles Escape itself
  if (event.key === "Escape") return void act("Escape", event);
  if (typing || shortcuts.peek() === "off") return;
  const name = pendingKey ? `${pendingKey} ${event.key}` : event.key;
  clearTimeout(timer);
  pendingKey = "";
  if (act(name, event)) return;
  if ([...registered.keys()].some((other) => other.startsWith(`${event.key} `))) {
    pendingKey = event.key;
    timer = setTimeout(() => (pendingKey = ""), 1200);
  }
});

function act(name, event) {
  const entry = registered.get(name)?.at(-1);
  if (!entry) return false;
  event.preventDefault();
  entry.act(event);
  return true;
}
