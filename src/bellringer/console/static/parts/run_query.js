// The search bar of runs: typed words such as `task:shop.ship state:dead` become the filters of the API, and the other way round.
import { html, useEffect, useId, useRef, useState } from "../lib/html.js";
import { get } from "../lib/api.js";
import { useKeys } from "../lib/keys.js";
import { narrow } from "../lib/place.js";
import { CAUSES, STATES } from "./run_words.js";

const KEYS = {
  state: "in these states, with commas",
  job: "of this job, by its name or id",
  task: "of this task",
  tag: "of jobs with this tag",
  cause: "why they exist",
  pool: "of this pool",
  worker: "that this worker ran, by its number",
  from: "scheduled for then or later: 1h, 2026-05-01, an instant",
  to: "scheduled for before then",
};
export const FILTERS = [...Object.keys(KEYS), "q"];
const WORD = /([a-z]+):(?:"([^"]*)"?|([^\s"]\S*))|"([^"]*)"?|(\S+)/g;
const LENGTH = /^(\d+)([smhdw])$/;
const UNITS = { s: 1, m: 60, h: 3_600, d: 86_400, w: 604_800 };
const AGO = ["15m", "1h", "6h", "24h", "7d"];
const REST = 400; // milliseconds that the typing has to rest before the list follows
const SHOWN = 10;

/** An instant as the API takes it: a length means so long ago, a day begins in the reader's zone. Undefined where it is none. */
function moment(text) {
  const length = LENGTH.exec(text);
  if (length) return new Date(Date.now() - Number(length[1]) * UNITS[length[2]] * 1000).toISOString();
  const at = new Date(/^\d{4}-\d\d-\d\d$/.test(text) ? `${text}T00:00` : text);
  return Number.isNaN(at.getTime()) || !/^\d{4}-/.test(text) ? undefined : at.toISOString();
}

/** What is wrong with a value, or nothing. */
function fault(key, value) {
  const unknown = (words, known) => words.filter((word) => !known.includes(word)).map((word) => `there is no ${key} “${word}”: use ${known.join(", ")}`)[0];
  if (key === "state") return unknown(value.split(",").filter(Boolean), STATES);
  if (key === "cause") return unknown([value], CAUSES);
  if (key === "worker") return /^[1-9]\d{0,9}$/.test(value) ? undefined : "a worker goes by its number";
  if (key === "from" || key === "to") return moment(value) ? undefined : `“${value}” is no time: use 1h, 2026-05-01 or 2026-05-01T10:00:00Z`;
  return undefined;
}

/** Words → {terms, wrong}; what is wrong is left out of the terms. */
export function parse(text) {
  const terms = {};
  const wrong = [];
  const free = [];
  for (const [all, key, quoted, bare, phrase, word] of text.matchAll(WORD)) {
    const value = quoted ?? bare;
    if (key && !(key in KEYS)) free.push(all);
    else if (key) {
      const bad = value ? fault(key, value) : undefined;
      if (bad) wrong.push(bad);
      else if (value) terms[key] = value;
    } else if (phrase !== undefined) free.push(phrase);
    else if (!(word.endsWith(":") && word.slice(0, -1) in KEYS)) free.push(word);
  }
  if (free.join(" ").trim()) terms.q = free.join(" ").trim();
  return { terms, wrong };
}

const quote = (value) => (/[\s"]/.test(value) ? `"${value.replaceAll('"', "")}"` : value);

/** Terms → words. */
export function spell(terms) {
  return [...Object.keys(KEYS).filter((key) => terms[key]).map((key) => `${key}:${quote(terms[key])}`), terms.q].filter(Boolean).join(" ");
}

/** Terms as the API takes them: lengths of time become instants, now. */
export function asked(terms) {
  return { ...terms, ...(terms.from && { from: moment(terms.from) ?? terms.from }), ...(terms.to && { to: moment(terms.to) ?? terms.to }) };
}

/** The same as the filter of an operation. */
export function filterOf(terms) {
  const { state, worker, ...rest } = asked(terms);
  return { ...rest, ...(state && { state: state.split(",") }), ...(worker && { worker: Number(worker) }) };
}

const names = async (path, pick, terms = { limit: 100 }) => (await get(path, terms).catch(() => ({ items: [] }))).items.flatMap(pick);

/** Values that are known; those of lists are read when the bar is first used. */
async function known() {
  const [pool, task, worker, jobs] = await Promise.all([
    names("pools", (one) => one.name), names("tasks", (one) => one.name), names("workers", (one) => String(one.worker_id), {}), names("jobs", (one) => one),
  ]);
  return { pool, task, worker, job: jobs.map((job) => job.name), tag: [...new Set(jobs.flatMap((job) => job.tags))].sort() };
}

/** What could be meant by the word that is being typed: [{text, what}]. */
function ideas(word, values) {
  const [key, ...rest] = word.split(":");
  if (!rest.length) return Object.entries(KEYS).filter(([name]) => name.startsWith(word)).map(([name, what]) => ({ text: `${name}:`, what }));
  const begun = rest.join(":").replace(/^"/, "").split(",");
  const last = begun.pop().toLowerCase();
  const before = key === "state" && begun.length ? `${begun.join(",")},` : "";
  const fitting = (values[key] ?? []).filter((one) => one.toLowerCase().includes(last) && !begun.includes(one));
  return fitting.slice(0, SHOWN).map((one) => ({ text: `${key}:${quote(before + one)}`, what: "" }));
}

/** Whether the last word may be meant as it stands: half the name of a job would find none. */
function isWhole(text, values) {
  const [key, ...rest] = /\S*$/.exec(text)[0].split(":");
  return !rest.length || !values[key] || ["from", "to"].includes(key) || values[key].includes(rest.join(":").split(",").at(-1));
}

export function QueryBar({ terms }) {
  const spelled = spell(terms);
  const [text, type] = useState(spelled);
  const [wrong, refuse] = useState([]);
  const [values, learn] = useState({ state: STATES, cause: CAUSES, from: AGO, to: AGO });
  const [open, unfold] = useState(false);
  const [at, move] = useState(-1);
  const field = useRef(null);
  const timer = useRef(0);
  const id = useId();
  useKeys({ "/": ["search", () => field.current?.focus()] }, "Filters");
  useEffect(() => () => clearTimeout(timer.current), []);
  // Chips, links and the buttons of the browser change the address too: then the words follow it.
  useEffect(() => {
    if (spell(parse(text).terms) === spelled) return;
    type(spelled);
    refuse([]);
  }, [spelled]);

  const word = /\S*$/.exec(text)[0];
  const found = open ? ideas(word, values) : [];
  function apply(next) {
    clearTimeout(timer.current);
    const read = parse(next);
    refuse(read.wrong);
    narrow(Object.fromEntries(FILTERS.map((name) => [name, read.terms[name] ?? ""])));
  }
  function typed(next) {
    type(next);
    unfold(true);
    move(-1);
    clearTimeout(timer.current);
    if (isWhole(next, values)) timer.current = setTimeout(() => apply(next), REST);
  }
  function choose(idea) {
    const whole = idea.text.endsWith(":");
    const next = `${text.slice(0, text.length - word.length)}${idea.text}${whole ? "" : " "}`;
    typed(next);
    if (!whole) {
      apply(next);
      unfold(false);
    }
    field.current?.focus();
  }
  function entered() {
    unfold(true);
    if (!values.pool) known().then((more) => learn((old) => ({ ...old, ...more })));
  }
  function left() {
    unfold(false);
    apply(text);
  }
  function pressed(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) {
      event.preventDefault();
      move((at + step + found.length + 1) % (found.length + 1) === found.length ? -1 : (at + step + found.length) % found.length);
    } else if (event.key === "Escape" && open) {
      event.preventDefault();
      event.stopPropagation();
      unfold(false);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (found[at]) choose(found[at]);
      else {
        apply(text);
        unfold(false);
      }
    }
  }
  return html`<div class="query"><label class="unseen" for=${id}>Search runs</label>
    <input ref=${field} id=${id} type="search" role="combobox" aria-expanded=${found.length > 0} aria-controls=${`${id}-ideas`}
      aria-autocomplete="list" aria-describedby=${`${id}-wrong`} aria-activedescendant=${found[at] ? `${id}-${at}` : undefined}
      aria-invalid=${wrong.length > 0 ? "true" : undefined} placeholder="Words, or task:… state:dead,retrying tag:… from:1h"
      autocomplete="off" spellcheck=${false} value=${text} onInput=${(event) => typed(event.target.value)}
      onFocus=${entered} onClick=${entered} onBlur=${left} onKeyDown=${pressed} />
    <ul id=${`${id}-ideas`} role="listbox" aria-label="what could be meant" hidden=${!found.length}>
      ${found.map((idea, n) => html`<li id=${`${id}-${n}`} key=${idea.text} role="option" aria-selected=${n === at}
        onMouseDown=${(event) => { event.preventDefault(); choose(idea); }}><code>${idea.text}</code> <span class="mute">${idea.what}</span></li>`)}
    </ul>
    <small id=${`${id}-wrong`} role="status" class="tone-bad">${wrong.join(" · ")}</small></div>`;
}
