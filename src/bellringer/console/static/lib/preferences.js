// Preferences of the user, stored in this browser. The API key is stored only for the tab.
import { effect, signal } from "./html.js";

function preference(name, fallback, store = localStorage) {
  const storageKey = `bellringer.${name}`;
  let first = fallback;
  try {
    first = store.getItem(storageKey) ?? fallback;
  } catch {
    // Storage is disabled: preferences last as long as the page.
  }
  const chosen = signal(first);
  effect(() => {
    try {
      if (chosen.value === null) store.removeItem(storageKey);
      else store.setItem(storageKey, chosen.value);
    } catch {
      // as above
    }
  });
  return chosen;
}

export const theme = preference("theme", "system"); // system, light, dark
export const zone = preference("zone", "local"); // local, utc, job
export const shortcuts = preference("shortcuts", "on"); // on, off: single-key shortcuts
export const rail = preference("rail", "wide");
export const filters = preference("filters", "{}"); // JSON: page → named filters
export const notifications = preference("notifications", "off"); // on, off: notifications of the browser
export const key = preference("key", null, sessionStorage);
export const tenant = preference("tenant", null, sessionStorage);

effect(() => (document.documentElement.dataset.theme = theme.value));
