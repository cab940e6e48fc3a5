// What the reader has chosen, kept in this browser. The key that they log in by lasts only as long as the tab.
import { effect, signal } from "./html.js";

function kept(name, fallback, store = localStorage) {
  const place = `bellringer.${name}`;
  let first = fallback;
  try {
    first = store.getItem(place) ?? fallback;
  } catch {
    // A browser that keeps nothing: choices last as long as the page.
  }
  const chosen = signal(first);
  effect(() => {
    try {
      if (chosen.value === null) store.removeItem(place);
      else store.setItem(place, chosen.value);
    } catch {
      // as above
    }
  });
  return chosen;
}

export const theme = kept("theme", "system"); // system, light, dark
export const zone = kept("zone", "local"); // local, utc, job
export const shortcuts = kept("shortcuts", "on"); // single keys may be turned off
export const rail = kept("rail", "wide");
export const key = kept("key", null, sessionStorage);
export const tenant = kept("tenant", null, sessionStorage);

effect(() => (document.documentElement.dataset.theme = theme.value));
