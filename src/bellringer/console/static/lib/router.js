// Routing: the path below the console and the query. The URL holds the whole state of a page.
import { computed, signal } from "./html.js";

const BASE = new URL(document.baseURI).pathname;

function currentRoute() {
  const path = location.pathname.startsWith(BASE) ? location.pathname.slice(BASE.length) : "";
  return { path: path.replace(/\/+$/, ""), search: location.search };
}

export const route = signal(currentRoute());
export const query = computed(() => new URLSearchParams(route.value.search));

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

/** Navigates to a page. `replace`: replace the current history entry. */
export function navigate(path, terms = {}, { replace = false } = {}) {
  const href = address(path, terms);
  if (href === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", href);
  route.value = currentRoute();
  if (!replace) scrollTo(0, 0);
}

/** Changes parameters of the current query; empty values are removed. */
export function setQuery(terms, options = { replace: true }) {
  const all = Object.fromEntries(query.peek());
  navigate(route.peek().path, { ...all, ...terms }, options);
}

addEventListener("popstate", () => (route.value = currentRoute()));

// Links inside the console navigate without a page load. Modified clicks, other targets and other sites are left to the browser.
addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  const isInternal = link && link.origin === location.origin && link.pathname.startsWith(BASE) && !link.target && !link.hasAttribute("download");
  if (!isInternal || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (link.hash && link.pathname === location.pathname) return;
  event.preventDefault();
  navigate(link.pathname.slice(BASE.length), Object.fromEntries(new URLSearchParams(link.search)));
});
