// What a run's handler logged: the last lines first, then whatever comes, until the run has ended.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { get, headers, part, url } from "../lib/api.js";
import { state as live } from "../lib/live.js";
import { narrow, query } from "../lib/place.js";
import { told } from "../lib/sse.js";
import { clock } from "../lib/time.js";
import { write } from "../lib/json.js";
import { CopyAs, Trouble } from "./basics.js";
import { attempt } from "./dialog.js";
import { isOver } from "./run_words.js";

const TAIL = 200; // lines of the first look
const MOST = 2_000; // lines that are kept on the page; the download has them all
const PAGE = 200;
const FLUSH = 200; // milliseconds: lines that come at once are drawn at once
const AGAIN = 2_000;
const SETTLING = 10_000; // milliseconds after its end in which a run's last lines may still come
const LEVELS = { debug: "debug and above", info: "info and above", warning: "warning and above", error: "errors only" };
const TONES = { debug: "mute", info: "calm", warning: "warn", error: "bad" };

/** The lines of a run: {lines, state, error}; state is reading, following, ended, or paused. */
function useLines(run, terms, whole) {
  const [found, find] = useState({ lines: [], state: "reading", error: null });
  const path = `runs/${part(run.run_id)}/logs`;
  const paused = live.value === "paused";
  const over = isOver(run);
  const ended = useRef(false);
  const [round, restart] = useState(0);
  // A run that was redriven logs again.
  useEffect(() => {
    if (!over && ended.current) restart(round + 1);
  }, [over]);
  useEffect(() => {
    const stop = new AbortController();
    let waiting = [];
    let timer = 0;
    const set = (more) => stop.signal.aborted || find((old) => ({ ...old, ...more }));
    function flush() {
      timer = 0;
      const fresh = waiting;
      waiting = [];
      if (!stop.signal.aborted) find((old) => ({ ...old, lines: [...old.lines, ...fresh].slice(-MOST) }));
    }
    async function follow(last) {
      while (!stop.signal.aborted) {
        set({ state: "following", error: null });
        for await (const { id, event, data } of told(path, { ...terms, follow: "true" }, { signal: stop.signal, last })) {
          if (event === "end") return;
          last = id;
          waiting.push(data);
          timer ||= setTimeout(flush, FLUSH);
        }
        await new Promise((later) => setTimeout(later, AGAIN)); // a stream ends after some minutes; it goes on where it was
      }
    }
    async function begin() {
      ended.current = false;
      const lines = whole ? await all(path, terms, stop.signal) : (await get(path, { ...terms, tail: TAIL }, stop.signal)).items;
      set({ lines, state: "reading", error: null });
      if (paused) return set({ state: "paused" });
      if (!over || Date.now() - new Date(run.finished_at ?? 0) < SETTLING) await follow(lines.at(-1)?.line);
      ended.current = true;
      set({ state: "ended" });
    }
    begin().catch((error) => set({ error, state: "ended" }));
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [path, JSON.stringify(terms), whole, paused, round]);
  return { ...found, again: () => restart(round + 1) };
}

/** From the first line on, as far as the page keeps them. */
async function all(path, terms, stop) {
  const lines = [];
  let cursor;
  do {
    const page = await get(path, { ...terms, limit: PAGE, cursor }, stop);
    lines.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor && lines.length < MOST);
  return lines;
}

/** All lines as text: asked for with the caller's key, so it cannot be a plain link. */
async function download(run, terms) {
  const answer = await fetch(url(`runs/${part(run.run_id)}/logs`, terms), { headers: headers({ Accept: "text/plain" }), cache: "no-store" });
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  const to = URL.createObjectURL(await answer.blob());
  Object.assign(document.createElement("a"), { href: to, download: `${run.run_id}.log` }).click();
  setTimeout(() => URL.revokeObjectURL(to), 10_000);
}

const fields = (line) => Object.entries(line.fields ?? {}).map(([name, value]) => ` ${name}=${typeof value === "string" ? value : write(value)}`).join("");
const millis = (at) => (/\.(\d{1,3})/.exec(at)?.[1] ?? "").padEnd(3, "0");

function Lines({ lines, wrap, zone, label }) {
  const box = useRef(null);
  const [stuck, stick] = useState(true);
  useEffect(() => {
    if (stuck && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, stuck]);
  const scrolled = ({ target }) => stick(target.scrollHeight - target.scrollTop - target.clientHeight < 24);
  return html`<div class="log-frame"><div ref=${box} class="logs ${wrap ? "" : "long"}" role="log" aria-live="off" aria-label=${label} tabindex="0"
    onScroll=${scrolled}>
      ${lines.map((line) => html`<div key=${line.line} class="line"><time datetime=${line.at}>${clock(line.at, zone)}.${millis(line.at)}</time> <span
        class="mute">#${line.attempt}</span> <span class="log-level tone-${TONES[line.level] ?? "mute"}">${line.level}</span> ${line.message}<span
        class="mute">${fields(line)}</span></div>`)}
    </div>${!stuck && html`<button type="button" class="pill low" onClick=${() => stick(true)}>To the newest line</button>`}</div>`;
}

const STATES = { reading: "Reading …", following: "● Follows what comes", ended: "All that was logged", paused: "❚❚ Paused: nothing is read" };

/** Which lines: the choices are in the address, so a link shows the same. */
function Filters({ run, terms }) {
  const [words, type] = useState(terms.q ?? "");
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  function typed(event) {
    const { value } = event.target;
    type(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => narrow({ words: value }), 300);
  }
  const numbers = [...new Set([...run.attempts.map((one) => one.attempt), run.attempt])].filter(Boolean).sort((a, b) => a - b);
  const pick = (name, label, of, chosen) => html`<label class="choice"><span>${label}</span><select value=${chosen ?? ""}
    onChange=${(event) => narrow({ [name]: event.target.value })}>
    <option value="">any</option>${Object.entries(of).map(([value, word]) => html`<option value=${value} selected=${value === chosen}>
      ${word}</option>`)}</select></label>`;
  return html`${pick("level", "Level", LEVELS, terms.level)}
    ${pick("attempt", "Attempt", Object.fromEntries(numbers.map((one) => [one, String(one)])), terms.attempt)}
    <label class="search"><span class="unseen">only lines with these words</span>
      <input type="search" placeholder="Only lines with …" value=${words} onInput=${typed} /></label>`;
}

function Silence({ run, state, filtered }) {
  if (state === "reading") return html`<p class="mute">Reading …</p>`;
  const clear = () => narrow({ level: "", attempt: "", words: "" });
  if (filtered) return html`<p class="mute">No line fits. <button type="button" class="quiet" onClick=${clear}>Show all lines</button></p>`;
  return html`<p class="mute">Nothing was logged${isOver(run) ? "" : " yet"}. In a task: <code>ctx.log.info("…", key=value)</code></p>`;
}

export function Logs({ run, zone }) {
  const given = query.value;
  const chosen = { level: given.get("level"), attempt: given.get("attempt"), q: given.get("words") };
  const terms = Object.fromEntries(Object.entries(chosen).filter(([, value]) => value));
  const [wrap, turn] = useState(true);
  const [whole, take] = useState(false);
  const found = useLines(run, terms, whole);
  const options = Object.entries(terms).map(([name, value]) => ` --${name} '${value.replaceAll("'", "'\\''")}'`).join("");
  const filtered = Object.keys(terms).length > 0;
  return html`<div class="tools"><${Filters} run=${run} terms=${terms} />
      <label><input type="checkbox" checked=${wrap} onChange=${() => turn(!wrap)} /> Wrap</label>
      <button type="button" onClick=${() => attempt(() => download(run, terms))}>Download</button>
      <span class="gap"></span><span class="mute" role="status">${STATES[found.state]}</span></div>
    <${Trouble} error=${found.error} again=${found.again} />
    ${found.lines.length === 0
      ? html`<${Silence} run=${run} state=${found.state} filtered=${filtered} />`
      : html`${!whole && found.lines.length >= TAIL && found.lines[0].line > 1 && html`<p><button type="button" class="quiet"
        onClick=${() => take(true)}>These are the last lines: read from the first</button></p>`}
        ${found.lines.length >= MOST && html`<p class="mute">Only ${MOST.toLocaleString("en")} lines are kept here; the download has all.</p>`}
        <${Lines} lines=${found.lines} wrap=${wrap} zone=${zone} label="what the run logged" />`}
    <p><${CopyAs} cli=${`bellringer runs logs ${run.run_id}${options}${isOver(run) ? "" : " -f"}`}
      path=${`runs/${part(run.run_id)}/logs?${new URLSearchParams(terms)}`} /></p>`;
}
