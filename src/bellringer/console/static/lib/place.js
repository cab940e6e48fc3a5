// Where the reader is: the path below the console, and the query. The address holds the whole state of a page.
import { computed, signal } from "./html.js";

const BASE = new URL(document.baseURI).pathname;

function here() {
  const path = location.pathname.startsWith(BASE) ? location.pathname.slice(BASE.length) : "";
  return { path: path.replace(/\/+$/, ""), search: location.search };
}

export const place = signal(here());
export const query = computed(() => new URLSearchParams(place.value.search));

export function address(path, terms = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(terms)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") search.append(name, one);
    }
  }
  const text = search.toString();
  return BASE + path + (text && `?${text}`);
}

/** Go to a page. `replace`: without a step of its own in the history. */
export function go(path, terms = {}, { replace = false } = {}) {
  const to = address(path, terms);
  if (to === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", to);
  place.value = here();
  if (!replace) scrollTo(0, 0);
}

/** Change terms of this page's query; empty ones are left out. */
export function narrow(terms, options = { replace: true }) {
  const all = Object.fromEntries(query.peek());
  go(place.peek().path, { ...all, ...terms }, options);
}

addEventListener("popstate", () => (place.value = here()));

// A link of ours changes the page without loading it anew; other buttons, other targets and other sites are the browser's.
addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  const ours = link && link.origin === location.origin && link.pathname.startsWith(BASE) && !link.target && !link.hasAttribute("download");
  if (!ours || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (link.hash && link.pathname === location.pathname) return;
  event.preventDefault();
  go(link.pathname.slice(BASE.length), Object.fromEntries(new URLSearchParams(link.search)));
});
