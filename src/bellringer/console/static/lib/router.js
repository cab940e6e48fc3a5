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

let ask = null; // asks before the page is left, see `askBeforeLeaving`
let entry = history.state?.entry ?? 0; // number of the current history entry
history.replaceState({ entry }, "");

/**
 * Until the returned function is called, every navigation to another page calls `question(go)` instead; `go()` continues it. Changes of the
 * query are not asked about: they stay on the page.
 */
export function askBeforeLeaving(question) {
  ask = question;
  return () => {
    if (ask === question) ask = null;
  };
}

/** Navigates to a page. `replace`: replace the current history entry; `leave`: do not ask whether to leave the page. */
export function navigate(path, terms = {}, { replace = false, leave = false } = {}) {
  const href = address(path, terms);
  if (href === location.pathname + location.search) return;
  if (ask && !leave && path !== route.peek().path) return void ask(() => navigate(path, terms, { replace, leave: true }));
  if (!replace) entry += 1;
  history[replace ? "replaceState" : "pushState"]({ entry }, "", href);
  route.value = currentRoute();
  if (!replace) scrollTo(0, 0);
}

/** Changes parameters of the current query; empty values are removed. */
export function setQuery(terms, options = { replace: true }) {
  const all = Object.fromEntries(query.peek());
  navigate(route.peek().path, { ...all, ...terms }, options);
}

let whenBack = null; // called when the history is at the page that the user may not want to leave

// Back and Forward have changed the address already: it is restored before the user is asked.
addEventListener("popstate", ({ state }) => {
  const to = state?.entry ?? entry + 1; // an entry without a number is a new one, such as that of a link to a heading
  const steps = to - entry;
  if (whenBack) {
    const then = whenBack;
    whenBack = null;
    return void then();
  }
  if (ask && steps && currentRoute().path !== route.peek().path) {
    whenBack = () => ask?.(() => {
      ask = null;
      history.go(steps);
    });
    return void history.go(-steps);
  }
  entry = to;
  if (!state) history.replaceState({ entry }, "");
  route.value = currentRoute();
});

// Links inside the console navigate without a page load. Modified clicks, other targets and other sites are left to the browser.
addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  const isInternal = link && link.origin === location.origin && link.pathname.startsWith(BASE) && !link.target && !link.hasAttribute("download");
  if (!isInternal || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (link.hash && link.pathname === location.pathname) return;
  event.preventDefault();
  navigate(link.pathname.slice(BASE.length), Object.fromEntries(new URLSearchParams(link.search)));
});
