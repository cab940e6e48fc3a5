// Command palette: jump to any page, job or run, or run a command.
import { html, signal, useEffect, useRef, useState } from "../lib/html.js";
import { get, may } from "../lib/api.js";
import { PAGES } from "../lib/shortcuts.js";
import { navigate } from "../lib/router.js";
import { theme, zone } from "../lib/preferences.js";
import { toggle as toggleLive } from "../lib/live.js";
import { pause, resume, runNow } from "./job_actions.js";
import { whyJob } from "./why.js";

const opened = signal(false);
export const openPalette = () => (opened.value = true);

export function Palette() {
  const dialog = useRef(null);
  const [text, setText] = useState("");
  const [found, setFound] = useState([]);
  const [at, setAt] = useState(0);
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
    const timer = setTimeout(async () => {
      const items = await search(text.trim(), stop.signal);
      if (stop.signal.aborted) return;
      searched.current = true;
      if (entered.current) return void choose(items[0]);
      setFound(items);
    }, text ? 150 : 0);
    setAt(0);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [text, opened.value]);
  function choose(one) {
    entered.current = false;
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
      setAt(Math.min(Math.max(at + step, 0), Math.max(found.length - 1, 0)));
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
    <input type="search" role="combobox" aria-expanded="true" aria-controls="palette-found"
      aria-activedescendant=${found[at] ? `found-${at}` : undefined}
      aria-label="Page, job name or run id" placeholder="Page, job name or run id …" value=${text}
      onInput=${typed} onKeyDown=${pressed} autofocus />
    <ul id="palette-found" role="listbox" aria-label="Results">
      ${found.map((one, n) => html`<li id=${`found-${n}`} role="option" aria-selected=${n === at} onClick=${() => choose(one)}><span
        class="mute">${one.kind}</span> ${one.name}</li>`)}
    </ul>
  </dialog>`;
}

/** Commands that need no job. */
const COMMANDS = [
  ...(["system", "light", "dark"].map((name) => ({ kind: "theme", name: `Theme: ${name}`, act: () => (theme.value = name) }))),
  { kind: "time", name: "Show times in UTC", act: () => (zone.value = "utc") },
  { kind: "time", name: "Show local times", act: () => (zone.value = "local") },
  { kind: "live", name: "Turn live updates on or off", act: toggleLive },
];
const CREATE = { kind: "action", name: "Create a job", path: "jobs/new" };
// "pause nightly": a verb, then the name of a job.
const VERBS = {
  pause: { role: "operator", act: pause, fits: (job) => !job.paused },
  resume: { role: "operator", act: (job) => resume(job), fits: (job) => job.paused },
  trigger: { role: "operator", act: runNow, fits: () => true },
  explain: { role: "viewer", act: whyJob, fits: () => true },
};

/** Whether all letters occur in the name in this order: "shb" finds "shop heartbeat". Words and beginnings count more. */
export function fuzzyScore(text, name) {
  const wanted = text.toLowerCase().replaceAll(" ", "");
  const letters = name.toLowerCase();
  let at = -1;
  let score = 0;
  for (const letter of wanted) {
    const next = letters.indexOf(letter, at + 1);
    if (next < 0) return 0;
    score += next === at + 1 ? 3 : /[^a-z0-9]/.test(letters[next - 1] ?? " ") ? 2 : 1;
    at = next;
  }
  return score / (letters.length + 8);
}

const best = (text, items) => items.map((one) => [fuzzyScore(text, one.name), one]).filter(([score]) => score > 0).sort(([a], [b]) => b - a).map(([, one]) => one);

async function search(text, stop) {
  const pages = Object.values(PAGES).map(([path, name]) => ({ kind: "page", name, path }));
  const actions = [...(may("editor") ? [CREATE] : []), ...COMMANDS];
  if (!text) return [...pages, ...actions];
  if (text.startsWith("run_")) return [{ kind: "run", name: text, path: `runs/${encodeURIComponent(text)}` }];
  const [word, ...rest] = text.split(/\s+/);
  const verb = VERBS[word.toLowerCase()];
  const asked = verb && may(verb.role) ? rest.join(" ") : text;
  const known = best(text, [...pages, ...actions]);
  try {
    const jobs = await findJobs(asked, stop);
    if (verb && may(verb.role)) return jobs.filter(verb.fits).map((job) => ({ kind: word.toLowerCase(), name: job.name, act: () => verb.act(job) }));
    const found = jobs.map((job) => ({ kind: "job", name: job.name, path: `jobs/${encodeURIComponent(job.job_id)}` }));
    return [...found, ...known, { kind: "runs", name: `runs of task ${text}`, path: "runs", terms: { task: text } }];
  } catch {
    return known;
  }
}

/** Jobs whose name contains the text; if there are none, those that fit loosely among the first jobs by name. */
async function findJobs(text, stop) {
  const { items } = await get("jobs", { ...(text && { q: text }), limit: 10, sort: "name" }, stop);
  if (items.length || !text) return items;
  const page = await get("jobs", { limit: 200, sort: "name" }, stop);
  return best(text, page.items).slice(0, 10);
}
