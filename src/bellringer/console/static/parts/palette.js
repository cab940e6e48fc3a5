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
const MAX_JOBS = 6;
const MAX_OTHERS = 5; // pages or commands
const SCAN_PAGE = 200; // jobs per request of the loose search
const RANKED_JOBS = 50; // jobs that contain the text, of which the best are shown
const SCAN_REQUESTS = 5; // pages of the list that the loose search reads, beside what the server finds
const dialog = { current: null };
const opened = signal(false);

/** Opens the palette at once, not after the next render: keys that are typed right after the shortcut belong to its field. */
export function openPalette() {
  if (dialog.current && !dialog.current.open) dialog.current.showModal();
  opened.value = true;
}

export function Palette() {
  const [text, setText] = useState("");
  const [found, setFound] = useState([]);
  const [at, setAt] = useState(0);
  const [aboutId, setAboutId] = useState(null); // the job whose actions are listed
  const [busy, setBusy] = useState(false);
  const searched = useRef(false); // whether the results belong to the text
  const entered = useRef(false); // Enter was pressed before they arrived
  useEffect(() => {
    const stop = new AbortController();
    searched.current = false;
    if (!opened.value) return undefined;
    setBusy(true);
    const timer = setTimeout(async () => {
      const items = await search(text, stop.signal);
      if (stop.signal.aborted) return;
      searched.current = true;
      setBusy(false);
      if (entered.current) return void choose(items[0]);
      setFound(items);
      setAboutId(items.find((one) => one.job)?.job.job_id ?? null);
    }, text ? TYPING_PAUSE_MS : 0);
    setAt(0);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [text, opened.value]);
  const shown = withActions(found, aboutId);
  useEffect(() => dialog.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" }), [at, found]);
  function close() {
    dialog.current.close();
    opened.value = false;
    entered.current = false;
    setText(""); // not when it opens: that would erase what is typed at once
  }
  function choose(one) {
    entered.current = false;
    if (one?.fill !== undefined) {
      setText(one.fill); // a verb: the name of a job follows
      return void dialog.current.querySelector("input").focus();
    }
    close();
    if (one?.act) one.act();
    else if (one) navigate(one.path, one.terms);
  }
  function typed(event) {
    searched.current = false; // at once: the effect that searches runs only after the next frame
    setText(event.target.value);
  }
  function select(n) {
    setAt(n);
    if (shown[n]?.job) setAboutId(shown[n].job.job_id);
  }
  function pressed(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      select((at + step + shown.length) % Math.max(shown.length, 1));
    }
    const firstAction = shown.findIndex((one) => one.about);
    if (event.key === "ArrowRight" && shown[at]?.job && firstAction >= 0 && event.target.selectionStart === event.target.value.length) {
      event.preventDefault();
      select(firstAction);
    }
    if (event.key === "Enter") {
      event.preventDefault();
      if (searched.current) choose(shown[at]);
      else entered.current = true;
    }
    if (event.key === "Escape") {
      event.preventDefault(); // a search field would only clear its text
      choose();
    }
  }
  return html`<dialog ref=${dialog} class="palette" aria-label="Search or jump to" onClose=${() => !dialog.current.open && close()}
    onClick=${(event) => event.target === dialog.current && choose()}>
    <div class="palette-field"><${Icon} name="search" /><input type="search" role="combobox" aria-expanded="true" aria-controls="palette-found"
      aria-activedescendant=${shown[at] ? `found-${at}` : undefined} aria-autocomplete="list"
      aria-label="Page, job name or run id" placeholder="Page, job, run id or command…" value=${text} autocomplete="off" spellcheck=${false}
      onInput=${typed} onKeyDown=${pressed} autofocus /></div>
    <ul id="palette-found" role="listbox" aria-label="Results" aria-busy=${busy}>
      ${shown.map((one, n) => html`${one.group !== shown[n - 1]?.group && html`<li key=${`group ${one.group}`} class="group" role="presentation">${one.group}</li>`}
        <${Option} key=${`${one.group} ${one.verb ?? ""} ${one.name} ${one.path ?? ""}`} one=${one} id=${`found-${n}`} selected=${n === at} choose=${choose} />`)}
    </ul>
    ${!busy && !shown.length && html`<p class="nothing mute">Nothing found.</p>`}
    <footer class="mute" aria-hidden="true"><span><kbd>↑</kbd> <kbd>↓</kbd> choose</span><span><kbd>${keyNames("Enter")}</kbd> open</span>
      ${shown.some((one) => one.about) && html`<span><kbd>→</kbd> actions of the job</span>`}<span><kbd>${keyNames("Escape")}</kbd> close</span></footer>
  </dialog>`;
}

function Option({ one, id, selected, choose }) {
  return html`<li id=${id} role="option" aria-selected=${selected} onClick=${() => choose(one)}><${Icon} name=${one.icon ?? "arrow-right"} />
    <span class="said">${one.verb && `${one.verb} `}<${Highlighted} name=${one.name} text=${one.typed} /></span>
    ${one.note && html`<span class="extra">${one.note}</span>`}${one.keys && html`<span class="keys" aria-hidden="true">${keyNames(one.keys).map((key) => html`<kbd>${key}</kbd>`)}</span>`}</li>`;
}

/** The results, with the actions on one of the jobs after the jobs. */
function withActions(found, jobId) {
  const about = found.find((one) => one.job?.job_id === jobId)?.job;
  if (!about) return found;
  const last = found.findLastIndex((one) => one.job);
  return found.toSpliced(last + 1, 0, ...actionsOn(about, `Actions on ${about.name}`).map((one) => ({ ...one, about: true })));
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

const THEMES = { system: ["screen", "Use the theme of the system"], light: ["sun", "Use the light theme"], dark: ["moon", "Use the dark theme"] };

/** Commands that need no job. */
const COMMANDS = () => [
  ...(may("editor") ? [{ icon: "plus", name: "Create a job", path: "jobs/new" }] : []),
  ...Object.entries(VERBS).filter(([, one]) => may(one.role)).map(([verb, one]) => ({ icon: one.icon, name: one.title, fill: `${verb} ` })),
  ...Object.entries(THEMES).map(([name, [icon, text]]) => ({ icon, name: text, act: () => (theme.value = name) })),
  { icon: "globe", name: "Show times in UTC", act: () => (zone.value = "utc") },
  { icon: "clock", name: "Show times in my time zone", act: () => (zone.value = "local") },
  { icon: "bolt", name: "Turn live updates on or off", act: toggleLive, keys: "." },
  { icon: "help", name: "Show keyboard shortcuts", act: openShortcutSheet, keys: "?" },
].map((one) => ({ ...one, group: "Commands" }));

// "pause nightly": a verb, then the name of a job.
const VERBS = {
  run: { role: "operator", title: "Run a job…", text: "Run now:", icon: "play", act: runNow, fits: () => true },
  pause: { role: "operator", title: "Pause a job…", text: "Pause", icon: "pause", act: pause, fits: (job) => !job.paused },
  resume: { role: "operator", title: "Resume a job…", text: "Resume", icon: "resume", act: (job) => resume(job), fits: (job) => job.paused },
  explain: { role: "viewer", title: "Explain a job…", text: "Explain", icon: "help", act: whyJob, fits: () => true },
  edit: { role: "editor", title: "Edit a job…", text: "Edit", icon: "edit", act: (job) => navigate(`jobs/${part(job.job_id)}/edit`), fits: () => true },
};
const verbOf = (word) => VERBS[word === "trigger" ? "run" : word]; // the API and the command line say trigger

const actionOn = (job, one, more) => ({ icon: one.icon, verb: one.text, name: job.name, act: () => one.act(job), ...more });
const actionsOn = (job, group) => Object.values(VERBS).filter((one) => may(one.role) && one.fits(job)).map((one) => actionOn(job, one, { group }));

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

/** Where the name has the text: 0: at its beginning, 1: at the beginning of a word, 2: inside of a word, 3: letters in between. */
export function placeIn(text, name) {
  const [wanted, letters] = [text.toLowerCase(), name.toLowerCase()];
  if (letters.startsWith(wanted)) return 0;
  if (!letters.includes(wanted)) return 3;
  return letters.split(/[^\p{L}\p{N}]+/u).some((word) => word.startsWith(wanted.split(/\s/)[0])) ? 1 : 2;
}

const byPlace = (text, items) => items.toSorted((a, b) => placeIn(text, a.name) - placeIn(text, b.name)); // stable: otherwise the order stays

/** For one or two letters, only names that have them at the beginning of a word, if there are any: most names contain them somewhere. */
function closest(text, items) {
  const near = items.filter((one) => placeIn(text, one.name) <= 1);
  return text.length <= 2 && near.length ? near : items;
}

/** Commands for the job whose page is open. */
async function commandsOfPage(stop) {
  const [list, id] = route.peek().path.split("/");
  if (list !== "jobs" || !id || id === "new") return [];
  return actionsOn(await get(`jobs/${id}`, {}, stop), "This job");
}

async function findTenants(stop) {
  if (!(caller.peek()?.everywhere && may("admin"))) return [];
  const { items } = await get("tenants", { limit: SCAN_PAGE }, stop);
  const here = tenant.peek() ?? caller.peek().tenant;
  return items.filter((one) => one.name !== here).map((one) => ({ icon: "tenants", group: "Tenants", name: `Switch to ${one.name}`, act: () => switchTenant(one.name) }));
}

/** A list that could not be loaded is left out. */
const orNone = (promise) => promise.catch(() => []);

const jobNote = (job) => (job.paused ? "paused" : !job.enabled ? "disabled" : job.description);

/** Finds what the text names, in groups; the group with the best match is the first. */
async function search(typed, stop) {
  const text = typed.trim();
  const pages = Object.entries(PAGES).map(([letter, [path, name]]) => ({ icon: path || "overview", group: "Pages", name, path, keys: `g ${letter}` }));
  const commands = COMMANDS();
  if (!text) return [...(await orNone(commandsOfPage(stop))), ...pages, ...commands];
  if (text.startsWith("run_")) return [{ icon: "runs", group: "Runs", name: text, path: `runs/${part(text)}` }];
  const [word, ...rest] = text.split(/\s+/);
  const verb = verbOf(word.toLowerCase());
  const isVerb = verb && may(verb.role) && /\s/.test(typed.trimStart());
  if (isVerb) {
    const asked = rest.join(" ");
    const jobs = await orNone(findJobs(asked, stop, { loosely: true }));
    return jobs.filter(verb.fits).map((job) => actionOn(job, verb, { group: verb.title.replace("…", ""), typed: asked }));
  }
  const tenants = await orNone(findTenants(stop));
  const groups = [pages, tenants, commands].map((items) => closest(text, byPlace(text, best(text, items))).slice(0, MAX_OTHERS));
  const isNamed = groups.flat().some((one) => text.toLowerCase().split(/\s+/).every((term) => one.name.toLowerCase().includes(term)));
  const jobs = await orNone(findJobs(text, stop, { loosely: !isNamed }));
  const found = jobs.map((job) => ({ icon: "jobs", group: "Jobs", name: job.name, note: jobNote(job), path: `jobs/${part(job.job_id)}`, job }));
  const [pagesFound, ...others] = groups;
  const all = [pagesFound, found, ...others].filter((items) => items.length).toSorted((a, b) => placeIn(text, a[0].name) - placeIn(text, b[0].name));
  return [...all.flat().map((one) => ({ ...one, typed: text })), { icon: "runs", group: "Runs", name: `Search runs for “${text}”`, path: "runs", terms: { q: text } }];
}

/**
 * Jobs whose name contains the text, those first that begin with it. If there are none and `loosely`, those whose name has its letters in this
 * order: the server searches all jobs for parts of the text, and lists the first ones by name; the best of both are kept.
 */
async function findJobs(text, stop, { loosely }) {
  const load = (q, limit) => get("jobs", { ...(q && { q }), limit, sort: "name" }, stop).then((page) => page.items);
  const exact = byPlace(text, await load(text, text.length > 2 ? RANKED_JOBS : SCAN_PAGE)).slice(0, MAX_JOBS);
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
