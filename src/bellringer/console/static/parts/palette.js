// Command palette: jump to any page, job, run or tenant, or run a command.
import { html, signal, useEffect, useRef, useState } from "../lib/html.js";
import { caller, get, may, part } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { PAGES, keyNames } from "../lib/shortcuts.js";
import { navigate, route } from "../lib/router.js";
import { tenant, theme, zone } from "../lib/preferences.js";
import { toggle as toggleLive } from "../lib/live.js";
import { pause, resume, runNow } from "./job_actions.js";
import { openShortcutSheet } from "./shortcut_sheet.js";
import { switchTenant } from "./switch_tenant.js";
import { whyJob } from "./why.js";

const TYPING_PAUSE_MS = 150; // milliseconds without typing before the search
const MAX_JOBS = 8;
const SCAN_PAGE = 200; // jobs per request of the loose search
const SCAN_REQUESTS = 5; // pages of the list that the loose search reads, beside what the server finds
const opened = signal(false);
export const openPalette = () => (opened.value = true);

export function Palette() {
  const dialog = useRef(null);
  const [text, setText] = useState("");
  const [found, setFound] = useState([]);
  const [at, setAt] = useState(0);
  const [busy, setBusy] = useState(false);
  const searched = useRef(false); // whether the results belong to the text
  const entered = useRef(false); // Enter was pressed before they arrived
  useEffect(() => {
    if (opened.value && !dialog.current.open) dialog.current.showModal();
    if (!opened.value) {
      setText(""); // not when it opens: that would erase what is typed at once
      dialog.current?.close();
    }
  }, [opened.value]);
  useEffect(() => {
    const stop = new AbortController();
    searched.current = false;
    if (!opened.value) return undefined;
    setBusy(true);
    const timer = setTimeout(async () => {
      const items = await search(text.trim(), stop.signal);
      if (stop.signal.aborted) return;
      searched.current = true;
      setBusy(false);
      if (entered.current) return void choose(items[0]);
      setFound(items);
    }, text ? TYPING_PAUSE_MS : 0);
    setAt(0);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [text, opened.value]);
  useEffect(() => dialog.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" }), [at, found]);
  function choose(one) {
    entered.current = false;
    if (one?.fill !== undefined) {
      setText(one.fill); // a verb: the name of a job follows
      return void dialog.current.querySelector("input").focus();
    }
    opened.value = false;
    if (one?.act) one.act();
    else if (one) navigate(one.path, one.terms);
  }
  function typed(event) {
    searched.current = false; // at once: the effect that searches runs only after the next frame
    setText(event.target.value);
  }
  function pressed(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt((at + step + found.length) % Math.max(found.length, 1));
    }
    if (event.key === "Enter") {
      event.preventDefault();
      if (searched.current) choose(found[at]);
      else entered.current = true;
    }
    if (event.key === "Escape") {
      event.preventDefault(); // a search field would only clear its text
      choose();
    }
  }
  return html`<dialog ref=${dialog} class="palette" aria-label="Search or jump to" onClose=${() => (opened.value = false)}
    onClick=${(event) => event.target === dialog.current && choose()}>
    <div class="palette-field"><${Icon} name="search" /><input type="search" role="combobox" aria-expanded="true" aria-controls="palette-found"
      aria-activedescendant=${found[at] ? `found-${at}` : undefined} aria-autocomplete="list"
      aria-label="Page, job name or run id" placeholder="Page, job, run id or command …" value=${text} autocomplete="off" spellcheck=${false}
      onInput=${typed} onKeyDown=${pressed} autofocus /></div>
    <ul id="palette-found" role="listbox" aria-label="Results" aria-busy=${busy}>
      ${found.map((one, n) => html`<li id=${`found-${n}`} key=${`${one.kind} ${one.name} ${one.path ?? ""}`} role="option" aria-selected=${n === at} onClick=${() => choose(one)}><${Icon}
        name=${one.icon ?? "arrow-right"} /><span class="kind">${one.kind}</span> <span class="said"><${Highlighted} name=${one.name} text=${one.typed} /></span>${one.keys && html`<span
        class="keys" aria-hidden="true">${keyNames(one.keys).map((key) => html`<kbd>${key}</kbd>`)}</span>`}</li>`)}
    </ul>
    ${!busy && !found.length && html`<p class="nothing mute">Nothing found.</p>`}
    <footer class="mute" aria-hidden="true"><span><kbd>↑</kbd> <kbd>↓</kbd> choose</span><span><kbd>${keyNames("Enter")}</kbd> open</span><span><kbd>${keyNames("Escape")}</kbd> close</span></footer>
  </dialog>`;
}

/** The name with the letters marked that were typed. */
function Highlighted({ name, text }) {
  const hits = new Set(text ? matchLetters(text, name) : []);
  if (!hits.size) return name;
  const pieces = [];
  for (const [n, letter] of [...name].entries()) {
    const isHit = hits.has(n);
    if (pieces.at(-1)?.isHit === isHit) pieces.at(-1).letters += letter;
    else pieces.push({ isHit, letters: letter });
  }
  return pieces.map((one) => (one.isHit ? html`<mark>${one.letters}</mark>` : one.letters));
}

/** Commands that need no job. */
const COMMANDS = () => [
  ...(may("editor") ? [{ icon: "plus", kind: "action", name: "Create a job", path: "jobs/new" }] : []),
  ...Object.entries(VERBS).filter(([, one]) => may(one.role)).map(([verb, one]) => ({ icon: one.icon, kind: "action", name: one.title, fill: `${verb} ` })),
  ...["system", "light", "dark"].map((name) => ({ icon: { system: "screen", light: "sun", dark: "moon" }[name], kind: "theme", name: `Theme: ${name}`, act: () => (theme.value = name) })),
  { icon: "globe", kind: "time", name: "Show times in UTC", act: () => (zone.value = "utc") },
  { icon: "clock", kind: "time", name: "Show local times", act: () => (zone.value = "local") },
  { icon: "bolt", kind: "live", name: "Turn live updates on or off", act: toggleLive, keys: "." },
  { icon: "help", kind: "help", name: "Show keyboard shortcuts", act: openShortcutSheet, keys: "?" },
];

// "pause nightly": a verb, then the name of a job.
const VERBS = {
  trigger: { role: "operator", title: "Trigger a job …", icon: "play", act: runNow, fits: () => true },
  pause: { role: "operator", title: "Pause a job …", icon: "pause", act: pause, fits: (job) => !job.paused },
  resume: { role: "operator", title: "Resume a job …", icon: "resume", act: (job) => resume(job), fits: (job) => job.paused },
  edit: { role: "editor", title: "Edit a job …", icon: "edit", act: (job) => navigate(`jobs/${part(job.job_id)}/edit`), fits: () => true },
  explain: { role: "viewer", title: "Explain a job …", icon: "help", act: whyJob, fits: () => true },
};

/**
 * The positions of the typed letters in the name, in this order: "shb" finds "shop heartbeat". A letter at the start of a word or right after
 * the previous one is preferred. Empty if a letter is missing.
 */
export function matchLetters(text, name) {
  const wanted = [...text.toLowerCase().replaceAll(" ", "")];
  const letters = [...name.toLowerCase()];
  const whole = letters.join("").indexOf(text.toLowerCase());
  if (whole >= 0) return [...text].map((_, n) => whole + n);
  const hits = [];
  let at = -1;
  for (const letter of wanted) {
    const starts = letters.findIndex((one, n) => n > at && one === letter && (n === at + 1 || /[^a-z0-9]/.test(letters[n - 1] ?? " ")));
    const next = letters.indexOf(letter, at + 1);
    if (next < 0) return [];
    const rest = wanted.slice(hits.length + 1);
    at = starts > next && !hasInOrder(rest, letters.slice(starts + 1)) ? next : starts >= 0 ? starts : next;
    hits.push(at);
  }
  return hits;
}

function hasInOrder(wanted, letters) {
  let at = -1;
  return wanted.every((letter) => (at = letters.indexOf(letter, at + 1)) >= 0);
}

/** How well the letters fit: neighbors and beginnings of words count more, long names less. 0: not all letters occur. */
export function fuzzyScore(text, name) {
  const hits = matchLetters(text, name);
  const score = hits.reduce((sum, hit, n) => sum + (hit === hits[n - 1] + 1 ? 3 : /[^a-z0-9]/i.test(name[hit - 1] ?? " ") ? 2 : 1), 0);
  return score / (name.length + 8);
}

const best = (text, items) => items.map((one) => [fuzzyScore(text, one.name), one]).filter(([score]) => score > 0).sort(([a], [b]) => b - a).map(([, one]) => one);
const marked = (text) => (one) => ({ ...one, typed: text });

/** Commands for the job whose page is open. */
async function commandsOfPage(stop) {
  const [list, id] = route.peek().path.split("/");
  if (list !== "jobs" || !id || id === "new") return [];
  const job = await get(`jobs/${id}`, {}, stop);
  return Object.entries(VERBS).filter(([, one]) => may(one.role) && one.fits(job)).map(([verb, one]) => ({ icon: one.icon, kind: verb, name: job.name, act: () => one.act(job) }));
}

async function findTenants(stop) {
  if (!(caller.peek()?.everywhere && may("admin"))) return [];
  const { items } = await get("tenants", { limit: SCAN_PAGE }, stop);
  const here = tenant.peek() ?? caller.peek().tenant;
  return items.filter((one) => one.name !== here).map((one) => ({ icon: "tenants", kind: "tenant", name: `Switch to ${one.name}`, act: () => switchTenant(one.name) }));
}

/** A list that could not be loaded is left out. */
const orNone = (promise) => promise.catch(() => []);

async function search(text, stop) {
  const pages = Object.entries(PAGES).map(([letter, [path, name]]) => ({ icon: path || "overview", kind: "page", name, path, keys: `g ${letter}` }));
  const commands = COMMANDS();
  if (!text) return [...(await orNone(commandsOfPage(stop))), ...pages, ...commands];
  if (text.startsWith("run_")) return [{ icon: "runs", kind: "run", name: text, path: `runs/${part(text)}` }];
  const [word, ...rest] = text.split(/\s+/);
  const verb = VERBS[word.toLowerCase()];
  const isVerb = verb && may(verb.role);
  const asked = isVerb ? rest.join(" ") : text;
  const tenants = isVerb ? [] : await orNone(findTenants(stop));
  const known = isVerb ? [] : best(text, [...pages, ...commands, ...tenants]).map(marked(text));
  const isNamed = known.some((one) => text.toLowerCase().split(/\s+/).every((term) => one.name.toLowerCase().includes(term)));
  const jobs = await orNone(findJobs(asked, stop, { loosely: !isNamed }));
  if (isVerb) return jobs.filter(verb.fits).map((job) => ({ icon: verb.icon, kind: word.toLowerCase(), name: job.name, typed: asked, act: () => verb.act(job) }));
  const found = jobs.map((job) => ({ icon: "jobs", kind: "job", name: job.name, typed: text, path: `jobs/${part(job.job_id)}` }));
  return [...found, ...known, { icon: "runs", kind: "runs", name: `runs of task ${text}`, path: "runs", terms: { task: text } }];
}

/**
 * Jobs whose name contains the text. If there are none and `loosely`, those whose name has its letters in this order: the server searches all
 * jobs for parts of the text, and lists the first ones by name; the best of both are kept.
 */
async function findJobs(text, stop, { loosely }) {
  const load = (q, limit) => get("jobs", { ...(q && { q }), limit, sort: "name" }, stop).then((page) => page.items);
  const exact = await load(text, MAX_JOBS);
  if (exact.length || !text || !loosely) return exact;
  const words = text.split(/\s+/).toSorted((a, b) => b.length - a.length);
  const parts = [...(words.length > 1 ? words : []), ...[4, 3, 2].map((length) => words[0].slice(0, length))];
  const asked = [...new Set(parts)].filter((one) => one.length > 1 && one !== text);
  const found = (await Promise.all([...asked.map((one) => load(one, SCAN_PAGE)), scanJobs(stop)])).flat();
  const known = new Map(found.map((job) => [job.job_id, job]));
  return best(text, [...known.values()]).slice(0, MAX_JOBS);
}

async function scanJobs(stop) {
  const found = [];
  let cursor;
  for (let n = 0; n < SCAN_REQUESTS && (n === 0 || cursor); n += 1) {
    const page = await get("jobs", { limit: SCAN_PAGE, sort: "name", cursor }, stop);
    found.push(...page.items);
    cursor = page.next_cursor;
  }
  return found;
}
