// Logs of a run: the last lines, then new lines until the run has ended.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { get, headers, part, url } from "../lib/api.js";
import { state as live } from "../lib/live.js";
import { setQuery, query } from "../lib/router.js";
import { readEvents } from "../lib/sse.js";
import { formatClock } from "../lib/time.js";
import { write } from "../lib/json.js";
import { CopyAs, ErrorMessage } from "./elements.js";
import { FoldedFilters } from "./filters.js";
import { perform } from "./dialog.js";
import { hasEnded } from "./run_text.js";

const TAIL_LINES = 200; // lines loaded initially
const MAX_LINES = 2_000; // lines shown on the page; the download contains all
const PAGE = 200;
const FLUSH_MS = 200; // milliseconds: new lines are rendered in batches
const RECONNECT_MS = 2_000;
const SETTLE_MS = 10_000; // milliseconds after the end of a run in which log lines may still arrive
const LEVELS = { debug: "debug and above", info: "info and above", warning: "warning and above", error: "errors only" };
const SOURCES = { ctx: "ctx.log", stdout: "stdout", stderr: "stderr", logging: "logging", warnings: "warnings" };
const TONES = { debug: "mute", info: "calm", warning: "warn", error: "bad" };

/** The log lines of a run: {lines, state, error}; state is reading, following, ended or paused. */
function useLines(run, terms, whole) {
  const [found, setFound] = useState({ lines: [], state: "reading", error: null });
  const path = `runs/${part(run.run_id)}/logs`;
  const paused = live.value === "paused";
  const over = hasEnded(run);
  const ended = useRef(false);
  const [round, setRound] = useState(0);
  // A run that is retried after its end logs again.
  useEffect(() => {
    if (!over && ended.current) setRound(round + 1);
  }, [over]);
  useEffect(() => {
    const stop = new AbortController();
    let waiting = [];
    let timer = 0;
    const set = (more) => stop.signal.aborted || setFound((old) => ({ ...old, ...more }));
    function flush() {
      timer = 0;
      const fresh = waiting;
      waiting = [];
      if (!stop.signal.aborted) setFound((old) => ({ ...old, lines: [...old.lines, ...fresh].slice(-MAX_LINES) }));
    }
    async function follow(last) {
      while (!stop.signal.aborted) {
        set({ state: "following", error: null });
        for await (const { id, event, data } of readEvents(path, { ...terms, follow: "true" }, { signal: stop.signal, last })) {
          if (event === "end") return;
          last = id;
          waiting.push(data);
          timer ||= setTimeout(flush, FLUSH_MS);
        }
        await new Promise((later) => setTimeout(later, RECONNECT_MS)); // streams end after some minutes; resume after the last line
      }
    }
    async function begin() {
      ended.current = false;
      const lines = whole ? await all(path, terms, stop.signal) : (await get(path, { ...terms, tail: TAIL_LINES }, stop.signal)).items;
      set({ lines, state: "reading", error: null });
      if (paused) return set({ state: "paused" });
      if (!over || Date.now() - new Date(run.finished_at ?? 0) < SETTLE_MS) await follow(lines.at(-1)?.line);
      ended.current = true;
      set({ state: "ended" });
    }
    begin().catch((error) => set({ error, state: "ended" }));
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [path, JSON.stringify(terms), whole, paused, round]);
  return { ...found, reload: () => setRound(round + 1) };
}

/** Reads from the first line up to the maximum of the page. */
async function all(path, terms, stop) {
  const lines = [];
  let cursor;
  do {
    const page = await get(path, { ...terms, limit: PAGE, cursor }, stop);
    lines.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor && lines.length < MAX_LINES);
  return lines;
}

/** Downloads all lines as text, with the caller's credentials. */
async function download(run, terms) {
  const response = await fetch(url(`runs/${part(run.run_id)}/logs`, terms), { headers: headers({ Accept: "text/plain" }), cache: "no-store" });
  if (!response.ok) throw new Error(`the server responded with status ${response.status}`);
  const to = URL.createObjectURL(await response.blob());
  Object.assign(document.createElement("a"), { href: to, download: `${run.run_id}.log` }).click();
  setTimeout(() => URL.revokeObjectURL(to), 10_000);
}

const fields = (line) => Object.entries(line.fields ?? {}).map(([name, value]) => ` ${name}=${typeof value === "string" ? value : write(value)}`).join("");
const millis = (at) => (/\.(\d{1,3})/.exec(at)?.[1] ?? "").padEnd(3, "0");

function Lines({ lines, wrap, zone, label, numbered }) {
  const box = useRef(null);
  const [stuck, setStuck] = useState(true);
  useEffect(() => {
    if (stuck && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, stuck]);
  const scrolled = ({ target }) => setStuck(target.scrollHeight - target.scrollTop - target.clientHeight < 24);
  return html`<div class="log-frame"><div ref=${box} class="logs ${wrap ? "" : "long"}" role="log" aria-live="off" aria-label=${label} tabindex="0"
    onScroll=${scrolled}>
      ${lines.map((line) => html`<div key=${line.line} class="line"><time datetime=${line.at}>${formatClock(line.at, zone)}.${millis(line.at)}</time> ${numbered && html`<span
        class="mute" title=${`attempt ${line.attempt}`}>#${line.attempt}</span> `}<span class="log-level tone-${TONES[line.level] ?? "mute"}">${line.level}</span> ${line.source !== "ctx" && html`<span
        class="mute">${line.source}</span> `}${line.message}<span
        class="mute">${fields(line)}</span></div>`)}
    </div>${!stuck && html`<button type="button" class="pill low" onClick=${() => setStuck(true)}>Jump to the newest line</button>`}</div>`;
}

const STATES = {
  reading: ["hourglass", "mute", "Loading…"], following: ["dot", "good", "Following"],
  ended: ["check", "mute", "Complete"], paused: ["pause", "warn", "Paused"],
};

function FollowState({ state }) {
  const [icon, tone, word] = STATES[state];
  return html`<span class="log-state tone-${tone}" role="status"><${Icon} name=${icon} /> ${word}</span>`;
}

const attemptsOf = (run) => [...new Set([...run.attempts.map((one) => one.attempt), run.attempt])].filter(Boolean).sort((a, b) => a - b);

/** Filters of the log; they are part of the URL. */
function Filters({ run, terms }) {
  const [words, setWords] = useState(terms.q ?? "");
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  function typed(event) {
    const { value } = event.target;
    setWords(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setQuery({ words: value }), 300);
  }
  const numbers = attemptsOf(run);
  const pick = (name, label, of, chosen) => html`<label class="choice"><span>${label}</span><select value=${chosen ?? ""}
    onChange=${(event) => setQuery({ [name]: event.target.value })}>
    <option value="">any</option>${Object.entries(of).map(([value, word]) => html`<option value=${value} selected=${value === chosen}>
      ${word}</option>`)}</select></label>`;
  return html`<label class="search"><span class="unseen">Search in logs</span>
      <input type="search" placeholder="Search in logs" value=${words} onInput=${typed} /></label>
    <${FoldedFilters} active=${["level", "source", "attempt"].filter((name) => terms[name]).length}>
      ${pick("level", "Level", LEVELS, terms.level)}
      ${pick("source", "Source", SOURCES, terms.source)}
      ${(numbers.length > 1 || terms.attempt) && pick("attempt", "Attempt", Object.fromEntries(numbers.map((one) => [one, String(one)])), terms.attempt)}<//>`;
}

function NoLines({ run, state, filtered }) {
  if (state === "reading") return html`<p class="mute">Loading…</p>`;
  const clear = () => setQuery({ level: "", source: "", attempt: "", words: "" });
  if (filtered) return html`<p class="mute">No matching lines. <button type="button" class="quiet" onClick=${clear}>Show all lines</button></p>`;
  return html`<p class="mute">No log lines${hasEnded(run) ? "" : " yet"}. In a task: <code>print("…")</code> or <code>ctx.log.info("…", key=value)</code></p>`;
}

export function Logs({ run, zone }) {
  const given = query.value;
  const chosen = { level: given.get("level"), source: given.get("source"), attempt: given.get("attempt"), q: given.get("words") };
  const terms = Object.fromEntries(Object.entries(chosen).filter(([, value]) => value));
  const [wrap, setWrap] = useState(true);
  const [whole, setWhole] = useState(false);
  const found = useLines(run, terms, whole);
  const options = Object.entries(terms).map(([name, value]) => ` --${name} '${value.replaceAll("'", "'\\''")}'`).join("");
  const filtered = Object.keys(terms).length > 0;
  const isEmpty = !filtered && found.lines.length === 0;
  return html`<header class="log-head"><h2>Logs</h2><${FollowState} state=${found.state} /><span class="gap"></span>
      ${!isEmpty && html`<label class="roomy-only"><input type="checkbox" checked=${wrap} onChange=${() => setWrap(!wrap)} /> Wrap</label>
      <button type="button" class="quiet" aria-label="Download" onClick=${() => perform(() => download(run, terms))}><${Icon} name="download" /><span class="roomy-only"> Download</span></button>`}
      <${CopyAs} cli=${`bellringer runs logs ${run.run_id}${options}${hasEnded(run) ? "" : " -f"}`}
        path=${`runs/${part(run.run_id)}/logs?${new URLSearchParams(terms)}`} /></header>
    ${!isEmpty && html`<div class="tools log-filters"><${Filters} run=${run} terms=${terms} /></div>`}
    <${ErrorMessage} error=${found.error} reload=${found.reload} />
    ${found.lines.length === 0
      ? html`<${NoLines} run=${run} state=${found.state} filtered=${filtered} />`
      : html`${!whole && found.lines.length >= TAIL_LINES && found.lines[0].line > 1 && html`<p><button type="button" class="quiet"
        onClick=${() => setWhole(true)}>Only the last lines are shown. Show from the first line</button></p>`}
        ${found.lines.length >= MAX_LINES && html`<p class="mute">Only ${MAX_LINES.toLocaleString("en")} lines are shown; the download contains all.</p>`}
        <${Lines} lines=${found.lines} wrap=${wrap} zone=${zone} label="Log lines" numbered=${attemptsOf(run).length > 1} />`}`;
}
