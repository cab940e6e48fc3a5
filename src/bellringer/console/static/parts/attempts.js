// The attempts of a run: a bar with its waiting, running and backoff times, and the details of each attempt.
import { html } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { setQuery } from "../lib/router.js";
import { now, secondsBetween, formatDuration } from "../lib/time.js";
import { DescriptionList, Link, Time } from "./elements.js";
import { CopyButton, errorSummary, hasEnded, workerName } from "./run_text.js";
import { State, look } from "./state_badge.js";

const KINDS = { waiting: ["clock", "waited", "calm"], backoff: ["retry", "waited between attempts", "warn"], running: ["play", "ran", "busy"] };

/** Splits the life of a run into pieces, from its due time to its end or to `moment`. */
export function splitTimes(run, moment) {
  const found = [];
  let at = Math.max(new Date(run.scheduled_for), new Date(run.fired_at ?? run.scheduled_for)); // a run may be created before its time, or long after
  function add(kind, to, more = {}) {
    const end = new Date(to).getTime();
    if (end > at || more.attempt) found.push({ kind, seconds: Math.max(0, end - at) / 1000, ...more }); // attempts are shown even if they took no time
    at = Math.max(at, end);
  }
  const tries = run.attempts.filter((one) => one.started_at).toSorted((a, b) => new Date(a.started_at) - new Date(b.started_at));
  for (const [n, one] of tries.entries()) {
    add(n ? "backoff" : "waiting", one.started_at);
    add("running", one.finished_at, { attempt: one.attempt, outcome: one.outcome ?? one.ends_as });
  }
  if (hasEnded(run)) {
    if (!tries.length && run.finished_at) add("waiting", run.finished_at);
    return found;
  }
  const ready = run.available_at && tries.length ? Math.min(new Date(run.available_at), moment) : at;
  add("backoff", ready);
  if (run.state !== "running") add(run.state === "retrying" ? "backoff" : "waiting", moment);
  else {
    add("waiting", run.started_at ?? moment);
    add("running", moment, { attempt: run.attempt, outcome: "running" });
  }
  return found;
}

const sum = (of, kind) => of.filter((one) => one.kind === kind).reduce((all, one) => all + one.seconds, 0);

const LABEL_SHARE = 0.16; // a piece that takes more of the bar has room for a label, on a phone too

/** A bar with waiting, running and backoff times, and the same as text. */
export function RunTimeBar({ run }) {
  const found = splitTimes(run, hasEnded(run) ? 0 : now.value);
  if (!found.length) return null;
  const whole = found.reduce((all, one) => all + one.seconds, 0);
  const kinds = Object.entries(KINDS).filter(([kind]) => found.some((one) => one.kind === kind));
  const words = kinds.map(([kind, [icon, word, shade]]) => ({ icon, tone: shade, text: `${kind === "running" && !hasEnded(run) ? "has run" : word} ${formatDuration(sum(found, kind))}` }));
  const tone = (one) => (one.outcome ? look(one.outcome)[1] : KINDS[one.kind][2]);
  const title = (one) => `${one.attempt ? `attempt ${one.attempt} ${one.outcome.replaceAll("_", " ")}: ` : ""}${KINDS[one.kind][1]} ${formatDuration(one.seconds)}`;
  return html`<div class="run-line" role="img" aria-label=${`${words.map((one) => one.text).join(", ")}; details of each attempt below`}>
      ${found.map((one) => html`<span class="piece ${one.kind} tone-${tone(one)}" style=${{ flexGrow: String(Math.max(one.seconds, 0.001)) }}
        title=${title(one)}>
        ${one.attempt && run.attempts.length > 1 && html`<span aria-hidden="true">${one.seconds > whole * LABEL_SHARE ? `Attempt ${one.attempt}` : one.attempt}</span>`}</span>`)}
    </div>
    <p class="legend">${words.map((one) => html`<span class="tone-${one.tone}"><${Icon} name=${one.icon} /> ${one.text}</span>`)}</p>`;
}

const FRAME = /^ {2}File "(.*)", line (\d+)(?:, in (.*))?$/;

/** Splits a Python traceback into frames and the text between them. */
export function parseTraceback(text) {
  const found = [];
  for (const line of text.replace(/\n$/, "").split("\n")) {
    const frame = FRAME.exec(line);
    const last = found.at(-1);
    if (frame) found.push({ file: frame[1], line: frame[2], name: frame[3] ?? "", code: [] });
    else if (last?.file && line.startsWith("    ")) last.code.push(line.slice(4));
    else if (last?.text !== undefined) last.text += `\n${line}`;
    else found.push({ text: line });
  }
  return found;
}

/** said: the error in one line, if it is shown elsewhere; the traceback then leaves out its last line, which says the same. */
function Traceback({ text, said }) {
  if (!text) return null;
  const pieces = parseTraceback(text);
  if (said && pieces.length > 1 && pieces.at(-1).text?.trim().endsWith(said)) pieces.pop();
  return html`<div class="traceback" role="group" aria-label="Traceback">
    ${pieces.map((one) =>
      one.file
        ? html`<div class="at"><strong>${one.name}</strong> <span class="mute">${one.file}:${one.line}</span>
            ${one.code.length > 0 && html`<pre>${one.code.join("\n")}</pre>`}</div>`
        : html`<pre class="said">${one.text}</pre>`)}
    <${CopyButton} text=${text} what="traceback" />
  </div>`;
}

function Attempt({ of, open, zone, shown, workers }) {
  const state = of.outcome ?? of.ends_as ?? "skipped";
  const error = errorSummary(of);
  const isShown = error !== "" && error === shown;
  const logs = () => {
    setQuery({ attempt: String(of.attempt) });
    document.getElementById("logs")?.scrollIntoView({ block: "start" });
  };
  return html`<details class="attempt" open=${open}>
    <summary><strong>${of.attempt ? `Attempt ${of.attempt}` : "No attempt"}</strong> <${State} of=${state} />${" "}
      <span class="mute">${of.started_at ? formatDuration(secondsBetween(of.started_at, of.finished_at)) : ""}${of.worker_id !== null ? ` on ${workerName(of.worker_id, workers)}` : ""}</span>${" "}
      ${!isShown && html`<span class="clip">${error}</span>`}</summary>
    ${error && !isShown && html`<p class="tone-bad"><${Icon} name="cross" /> ${error}</p>`}
    <${Traceback} text=${of.error?.traceback} said=${error} />
    <${DescriptionList} of=${[
      ["Started", html`<${Time} at=${of.started_at} job=${zone} short=${false} />`],
      ["Ended", html`<${Time} at=${of.finished_at} job=${zone} short=${false} />`],
      of.worker_id !== null && ["Worker", html`<${Link} to="runs" terms=${{ worker: of.worker_id }} title="Runs of this worker">${workerName(of.worker_id, workers)}<//>`],
      of.ends_as && ["Final state", of.ends_as.replaceAll("_", " ")],
      of.revision !== null && ["Revision", of.revision],
    ]} />
    ${of.attempt > 0 && html`<p><button type="button" onClick=${logs}>Show only this attempt's logs</button></p>`}
  </details>`;
}

/** Newest first; the latest attempt is expanded if it has an error. The error that the page shows above is not repeated. */
export function Attempts({ run, zone, workers }) {
  const all = run.attempts.toSorted((a, b) => b.attempt - a.attempt);
  if (!all.length) return html`<p class="mute">${run.state === "running" ? "The first attempt is running." : "No attempts yet."}</p>`;
  const shown = run.state === "running" ? "" : errorSummary(run) || errorSummary(run.attempts.at(-1));
  return all.map((one, n) => html`<${Attempt} key=${`${run.run_id} ${one.attempt}`} of=${one} zone=${zone} open=${n === 0 && Boolean(one.error)}
    shown=${shown} workers=${workers} />`);
}
