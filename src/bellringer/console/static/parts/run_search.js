// Search bar for runs: parses text such as `task:shop.ship state:dead` into API filters, and formats filters as text.
import { html, useEffect, useId, useRef, useState } from "../lib/html.js";
import { get } from "../lib/api.js";
import { useShortcuts } from "../lib/shortcuts.js";
import { setQuery } from "../lib/router.js";
import { CAUSES, STATES } from "./run_text.js";

const KEYS = {
  state: "states, comma-separated",
  job: "name or id of the job",
  task: "name of the task",
  tag: "tag of the job",
  cause: "cause of the run",
  pool: "name of the pool",
  worker: "id of the worker",
  from: "scheduled at or after: 1h (ago), 2026-05-01, or a time",
  to: "scheduled before",
};
export const FILTERS = [...Object.keys(KEYS), "q"];
const WORD = /([a-z]+):(?:"([^"]*)"?|([^\s"]\S*))|"([^"]*)"?|(\S+)/g;
const LENGTH = /^(\d+)([smhdw])$/;
const UNITS = { s: 1, m: 60, h: 3_600, d: 86_400, w: 604_800 };
const DURATIONS = ["15m", "1h", "6h", "24h", "7d"];
const TYPING_PAUSE_MS = 400; // milliseconds without typing before the list is updated
const MAX_SUGGESTIONS = 10;

/** Parses a time: a duration means that long ago, a date is midnight in the browser's time zone. Undefined if invalid. */
function parseTime(text) {
  const length = LENGTH.exec(text);
  if (length) return new Date(Date.now() - Number(length[1]) * UNITS[length[2]] * 1000).toISOString();
  const at = new Date(/^\d{4}-\d\d-\d\d$/.test(text) ? `${text}T00:00` : text);
  return Number.isNaN(at.getTime()) || !/^\d{4}-/.test(text) ? undefined : at.toISOString();
}

/** The error message for an invalid value, or undefined. */
function validate(key, value) {
  const unknown = (words, loadValues) => words.filter((word) => !loadValues.includes(word)).map((word) => `unknown ${key} “${word}”: use ${loadValues.join(", ")}`)[0];
  if (key === "state") return unknown(value.split(",").filter(Boolean), STATES);
  if (key === "cause") return unknown([value], CAUSES);
  if (key === "worker") return /^[1-9]\d{0,9}$/.test(value) ? undefined : "worker must be a number";
  if (key === "from" || key === "to") return parseTime(value) ? undefined : `“${value}” is not a time: use 1h, 2026-05-01 or 2026-05-01T10:00:00Z`;
  return undefined;
}

/** Parses the text into {terms, wrong}; invalid values are only in `wrong`. */
export function parse(text) {
  const terms = {};
  const wrong = [];
  const free = [];
  for (const [all, key, quoted, bare, phrase, word] of text.matchAll(WORD)) {
    const value = quoted ?? bare;
    if (key && !(key in KEYS)) free.push(all);
    else if (key) {
      const bad = value ? validate(key, value) : undefined;
      if (bad) wrong.push(bad);
      else if (value) terms[key] = value;
    } else if (phrase !== undefined) free.push(phrase);
    else if (!(word.endsWith(":") && word.slice(0, -1) in KEYS)) free.push(word);
  }
  if (free.join(" ").trim()) terms.q = free.join(" ").trim();
  return { terms, wrong };
}

const quote = (value) => (/[\s"]/.test(value) ? `"${value.replaceAll('"', "")}"` : value);

/** Formats terms as text. */
export function formatQuery(terms) {
  return [...Object.keys(KEYS).filter((key) => terms[key]).map((key) => `${key}:${quote(terms[key])}`), terms.q].filter(Boolean).join(" ");
}

/** Terms for the API: durations become instants. */
export function apiTerms(terms) {
  return { ...terms, ...(terms.from && { from: parseTime(terms.from) ?? terms.from }), ...(terms.to && { to: parseTime(terms.to) ?? terms.to }) };
}

/** Terms as the filter of a bulk operation. */
export function filterOf(terms) {
  const { state, worker, ...rest } = apiTerms(terms);
  return { ...rest, ...(state && { state: state.split(",") }), ...(worker && { worker: Number(worker) }) };
}

const names = async (path, pick, terms = { limit: 100 }) => (await get(path, terms).catch(() => ({ items: [] }))).items.flatMap(pick);

/** Loads the suggestions, when the search bar is first used. */
async function loadValues() {
  const [pool, task, worker, jobs] = await Promise.all([
    names("pools", (one) => one.name), names("tasks", (one) => one.name), names("workers", (one) => String(one.worker_id), {}), names("jobs", (one) => one),
  ]);
  return { pool, task, worker, job: jobs.map((job) => job.name), tag: [...new Set(jobs.flatMap((job) => job.tags))].sort() };
}

/** Suggestions for the current word: [{text, what}]. */
function suggestionsFor(word, values) {
  const [key, ...rest] = word.split(":");
  if (!rest.length) return Object.entries(KEYS).filter(([name]) => name.startsWith(word)).map(([name, what]) => ({ text: `${name}:`, what }));
  const begun = rest.join(":").replace(/^"/, "").split(",");
  const last = begun.pop().toLowerCase();
  const before = key === "state" && begun.length ? `${begun.join(",")},` : "";
  const fitting = (values[key] ?? []).filter((one) => one.toLowerCase().includes(last) && !begun.includes(one));
  return fitting.slice(0, MAX_SUGGESTIONS).map((one) => ({ text: `${key}:${quote(before + one)}`, what: "" }));
}

/** Whether the last word is complete; half of a job name would match nothing. */
function isWhole(text, values) {
  const [key, ...rest] = /\S*$/.exec(text)[0].split(":");
  return !rest.length || !values[key] || ["from", "to"].includes(key) || values[key].includes(rest.join(":").split(",").at(-1));
}

export function QueryBar({ terms }) {
  const spelled = formatQuery(terms);
  const [text, setText] = useState(spelled);
  const [wrong, setWrong] = useState([]);
  const [values, setValues] = useState({ state: STATES, cause: CAUSES, from: DURATIONS, to: DURATIONS });
  const [open, setOpen] = useState(false);
  const [at, setAt] = useState(-1);
  const field = useRef(null);
  const timer = useRef(0);
  const id = useId();
  useShortcuts({ "/": ["search", () => field.current?.focus()] }, "Filters");
  useEffect(() => () => clearTimeout(timer.current), []);
  // Chips, links and the browser's buttons change the URL too; then the text follows.
  useEffect(() => {
    if (formatQuery(parse(text).terms) === spelled) return;
    setText(spelled);
    setWrong([]);
  }, [spelled]);

  const word = /\S*$/.exec(text)[0];
  const found = open ? suggestionsFor(word, values) : [];
  function apply(next) {
    clearTimeout(timer.current);
    const read = parse(next);
    setWrong(read.wrong);
    setQuery(Object.fromEntries(FILTERS.map((name) => [name, read.terms[name] ?? ""])));
  }
  function typed(next) {
    setText(next);
    setOpen(true);
    setAt(-1);
    clearTimeout(timer.current);
    if (isWhole(next, values)) timer.current = setTimeout(() => apply(next), TYPING_PAUSE_MS);
  }
  function choose(suggestion) {
    const whole = suggestion.text.endsWith(":");
    const next = `${text.slice(0, text.length - word.length)}${suggestion.text}${whole ? "" : " "}`;
    typed(next);
    if (!whole) {
      apply(next);
      setOpen(false);
    }
    field.current?.focus();
  }
  function entered() {
    setOpen(true);
    if (!values.pool) loadValues().then((more) => setValues((old) => ({ ...old, ...more })));
  }
  function left() {
    setOpen(false);
    apply(text);
  }
  function pressed(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) {
      event.preventDefault();
      setAt((at + step + found.length + 1) % (found.length + 1) === found.length ? -1 : (at + step + found.length) % found.length);
    } else if (event.key === "Escape" && open) {
      event.preventDefault();
      event.stopPropagation();
      setOpen(false);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (found[at]) choose(found[at]);
      else {
        apply(text);
        setOpen(false);
      }
    }
  }
  return html`<div class="query"><label class="unseen" for=${id}>Search runs</label>
    <input ref=${field} id=${id} type="search" role="combobox" aria-expanded=${found.length > 0} aria-controls=${`${id}-ideas`}
      aria-autocomplete="list" aria-describedby=${`${id}-wrong`} aria-activedescendant=${found[at] ? `${id}-${at}` : undefined}
      aria-invalid=${wrong.length > 0 ? "true" : undefined} placeholder="Text, or task:… state:dead,retrying tag:… from:1h"
      autocomplete="off" spellcheck=${false} value=${text} onInput=${(event) => typed(event.target.value)}
      onFocus=${entered} onClick=${entered} onBlur=${left} onKeyDown=${pressed} />
    <ul id=${`${id}-ideas`} role="listbox" aria-label="Suggestions" hidden=${!found.length}>
      ${found.map((suggestion, n) => html`<li id=${`${id}-${n}`} key=${suggestion.text} role="option" aria-selected=${n === at}
        onMouseDown=${(event) => { event.preventDefault(); choose(suggestion); }}><code>${suggestion.text}</code> <span class="mute">${suggestion.what}</span></li>`)}
    </ul>
    <small id=${`${id}-wrong`} role="status" class="tone-bad">${wrong.join(" · ")}</small></div>`;
}
