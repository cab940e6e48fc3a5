// The frame around every page: navigation, top bar, and routing from paths to page modules.
import { html, render, signal, useEffect } from "./lib/html.js";
import { caller, loginRequired, whoami } from "./lib/api.js";
import { Icon } from "./lib/icons.js";
import { PAGES, keyNames, useShortcuts } from "./lib/shortcuts.js";
import { key, rail, theme, zone } from "./lib/preferences.js";
import { address, route } from "./lib/router.js";
import { state as live, toggle } from "./lib/live.js";
import { Dialogs, Notices } from "./parts/dialog.js";
import { ErrorMessage, Skeleton } from "./parts/elements.js";
import { Login } from "./pages/login.js";
import { Palette, openPalette } from "./parts/palette.js";
import { openShortcutSheet } from "./parts/shortcut_sheet.js";
import "./parts/browser_notifications.js";

// Path → module in pages/. Its default export is a component with the prop `parts`. Modules are imported on first use.
const ROUTES = [
  ["", "overview"],
  ["jobs", "jobs"],
  ["jobs/new", "job_form"],
  ["jobs/:id", "job"],
  ["jobs/:id/edit", "job_form"],
  ["workflows", "workflows"],
  ["runs", "runs"],
  ["runs/:id", "run"],
  ["operations/:id", "operation"],
  ["dead-letters", "dead_letters"],
  ["calendar", "calendar"],
  ["workers", "workers"],
  ["cluster", "cluster"],
  ["tenants", "tenants"],
  ["audit", "audit"],
  ["settings", "settings"],
];
const GROUPS = { Work: ["o", "j", "f", "r", "d", "c"], System: ["w", "k"], Admin: ["t", "a", "s"] };
const MOST_USED = ["o", "j", "r", "d", "c"];
const PATHS = Object.fromEntries(Object.values(PAGES));
const drawer = signal(false); // the menu on narrow screens

function matchRoute(path) {
  const given = path.split("/");
  for (const [template, module] of ROUTES) {
    const wanted = template.split("/");
    if (wanted.length !== given.length) continue;
    const parts = {};
    if (wanted.every((one, n) => (one.startsWith(":") ? (parts[one.slice(1)] = decodeURIComponent(given[n])) : one === given[n]))) return { module, parts };
  }
  return { module: "not_found", parts: {} };
}

const loaded = signal({});
const broken = signal(null);

async function load(module) {
  try {
    const found = await import(`./pages/${module}.js`);
    loaded.value = { ...loaded.peek(), [module]: found.default };
    broken.value = null;
  } catch (error) {
    broken.value = error;
  }
}

function Page() {
  const { module, parts } = matchRoute(route.value.path);
  const Found = loaded.value[module];
  useEffect(() => {
    if (!loaded.peek()[module]) load(module);
  }, [module]);
  if (broken.value) return html`<${ErrorMessage} error=${broken.value} reload=${() => load(module)} />`;
  return Found ? html`<${Found} key=${route.value.path} parts=${parts} />` : html`<${Skeleton} shape="page" />`;
}

/** The title names the page, and the job or run that it shows as soon as its heading is there. */
function useTitle() {
  useEffect(() => {
    const main = document.getElementById("app");
    const set = () => {
      const heading = main.querySelector("main h1, .login h1")?.textContent.trim().slice(0, 80);
      document.title = [heading || PATHS[route.peek().path.split("/")[0]], "Bellringer"].filter(Boolean).join(" · ");
    };
    set();
    const seen = new MutationObserver(set);
    seen.observe(main, { childList: true, subtree: true });
    return () => seen.disconnect();
  }, [route.value.path]);
}

function Rail() {
  const at = route.value.path.split("/")[0];
  useEffect(() => void (drawer.value = false), [route.value]);
  return html`<nav class="rail" id="rail" aria-label="pages" data-open=${drawer.value} onKeyDown=${(event) => event.key === "Escape" && (drawer.value = false)}>
    <a class="brand" href=${address("")} aria-label="Bellringer, overview"><img src="static/icon.svg" alt="" width="20" height="20" /> <span class="word">Bellringer</span></a>
    ${Object.entries(GROUPS).map(([group, letters]) => html`<div class="group"><h2>${group}</h2><ul>
      ${letters.map((letter) => {
        const [path, name] = PAGES[letter];
        return html`<li><a href=${address(path)} aria-current=${at === path ? "page" : undefined} title=${`${name} (g ${letter})`}><${Icon} name=${path || "overview"} /> <span class="word">${name}</span></a></li>`;
      })}</ul></div>`)}
    <button type="button" class="quiet fold" aria-expanded=${rail.value === "wide"} onClick=${() => (rail.value = rail.value === "wide" ? "narrow" : "wide")}><${Icon} name=${rail.value === "wide" ? "fold-in" : "fold-out"} /> <span class="word">Collapse</span><span class="unseen"> the menu</span></button>
  </nav>`;
}

const LIVE = { live: ["dot", "Live"], polling: ["circle-dashed", "Polling"], paused: ["pause", "Paused"], connecting: ["circle-dashed", "Connecting"] };
const cycle = (chosen, values) => (chosen.value = values[(values.indexOf(chosen.peek()) + 1) % values.length]);

function Bar() {
  const [icon, word] = LIVE[live.value];
  const who = caller.value;
  return html`<header class="bar">
    <button type="button" class="quiet drawer" aria-label="Menu" aria-expanded=${drawer.value} aria-controls="rail" onClick=${() => (drawer.value = !drawer.value)}><${Icon} name=${drawer.value ? "close" : "menu"} /></button>
    <button type="button" class="find" onClick=${openPalette}><${Icon} name="search" /> <span>Search or jump to…</span> <kbd>${keyNames("Mod+K").join(" ")}</kbd></button>
    <span class="gap"></span>
    <button type="button" class="quiet live ${live.value}" title="Turn live updates on or off (.)" aria-pressed=${live.value !== "paused"} onClick=${toggle}><${Icon} name=${icon} /> ${word}</button>
    <button type="button" class="quiet preference" title="Time zone of displayed times (z)" onClick=${() => cycle(zone, ["local", "utc", "job"])}><${Icon} name="clock" /> ${{ local: "Local time", utc: "UTC", job: "Job's time zone" }[zone.value]}</button>
    <button type="button" class="quiet preference" title="Switch theme (t)" onClick=${() => cycle(theme, ["system", "light", "dark"])}><${Icon} name=${{ system: "screen", light: "sun", dark: "moon" }[theme.value]} /> ${{ system: "System theme", light: "Light", dark: "Dark" }[theme.value]}</button>
    ${who && html`<span class="who" title=${`You are ${who.role} in the tenant ${who.tenant}`}>${who.name ?? who.actor ?? who.who ?? "you"} <span aria-hidden="true">@</span><span class="unseen"> in the tenant </span> ${who.tenant}</span>`}
    ${key.value && html`<button type="button" class="quiet" onClick=${() => { key.value = null; location.reload(); }}>Log out</button>`}
  </header>`;
}

/** On narrow screens, the pages that are needed most are always within reach of a thumb. */
function MainPages() {
  const at = route.value.path.split("/")[0];
  return html`<nav class="main-pages" aria-label="most used pages">${MOST_USED.map((letter) => {
    const [path, name] = PAGES[letter];
    return html`<a href=${address(path)} aria-current=${at === path ? "page" : undefined}><${Icon} name=${path || "overview"} /><span>${name}</span></a>`;
  })}</nav>`;
}

function App() {
  useEffect(() => void whoami().catch(() => {}), [key.value]);
  useShortcuts(
    {
      "?": ["show keyboard shortcuts", openShortcutSheet],
      ".": ["turn live updates on or off", toggle],
      z: ["switch the time zone", () => cycle(zone, ["local", "utc", "job"])],
      t: ["switch the theme", () => cycle(theme, ["system", "light", "dark"])],
      "Mod+K": ["search or jump to", openPalette],
    },
    "Everywhere",
  );
  useTitle();
  if (loginRequired.value) return html`<${Login} /><${Notices} />`;
  return html`<div class="frame" data-rail=${rail.value}>
    <a class="skip" href="#main">Skip to content</a>
    <${Rail} />
    ${drawer.value && html`<div class="shade" aria-hidden="true" onClick=${() => (drawer.value = false)}></div>`}
    <${MainPages} />
    <div class="side"><${Bar} /><main id="main" tabindex="-1"><${Page} /></main></div>
    <${Palette} /><${Dialogs} /><${Notices} />
  </div>`;
}

render(html`<${App} />`, document.getElementById("app"));
