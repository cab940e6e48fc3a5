// Texts about runs, shared by all pages.
import { html, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { part } from "../lib/api.js";
import { now, secondsBetween, formatDuration } from "../lib/time.js";
import { Link, copy } from "./elements.js";

export const STATES = ["running", "queued", "blocked", "retrying", "waiting", "succeeded", "dead", "cancelled", "skipped"];
export const CAUSES = ["schedule", "manual", "send", "backfill", "catchup", "replay", "workflow", "webhook", "after"];
export const CANCELLABLE = ["running", "queued", "blocked", "retrying", "waiting"];
export const RETRIABLE = ["dead", "retrying"];
export const hasEnded = (run) => ["succeeded", "dead", "cancelled", "skipped"].includes(run.state);

/** The error of a run or attempt in one line, or its reason. */
export function errorSummary(of) {
  const error = of?.error;
  if (!error || typeof error !== "object") return error ? String(error) : (of?.reason ?? "");
  if (error.type === "NodesFailed" && error.message) return capitalize(error.message); // names the node and its error
  return [error.type, error.message].filter(Boolean).join(": ") || error.reason || of.reason || "";
}

const capitalize = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

/** What blocks the run, as text. */
export const blockReasons = (run) => run.blocked.map((one) => one.replaceAll("_", " ")).join(", ");

/** Progress reported by the handler. */
export function progressText(run) {
  const { done, total, note } = run.progress ?? {};
  if (done === undefined && !note) return "";
  const number = (value) => Number(value).toLocaleString("en");
  const share = total ? `${Math.floor((Number(done) / Number(total)) * 100)}%` : "";
  const far = done === undefined ? "" : !total ? number(done) : note ? share : `${number(done)} of ${number(total)} (${share})`; // a note usually has the numbers
  return [far, note].filter(Boolean).join(" · ");
}

/** Duration of the run, up to now if it is executing. */
export function RunDuration({ run }) {
  if (!run.started_at || (!run.finished_at && run.state !== "running")) return "–";
  return formatDuration(run.finished_at ? secondsBetween(run.started_at, run.finished_at) : Math.max(0, (now.value - new Date(run.started_at)) / 1000));
}

export const formatLateness = (run) => (run.lateness_ms === null ? "–" : formatDuration(Math.max(0, run.lateness_ms) / 1000));

/** The name of a worker; `workers`: names by id, without those that the server no longer lists. */
export const workerName = (id, workers) => workers?.get(id) ?? `worker-${id}`;

/** Shortens an id to its end, the part that differs between runs. */
export const shortId = (id) => (id.length > 16 ? `…${id.slice(-10)}` : id);

export function CopyButton({ text, what }) {
  const [done, setDone] = useState(false);
  async function take() {
    await copy(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  }
  const label = done ? `Copied ${what}` : `Copy ${what}`;
  return html`<button type="button" class="quiet icon" aria-label=${label} title=${label} onClick=${take}><${Icon} name=${done ? "check" : "copy"} /></button>`;
}

/** Shortened run id with a copy button. */
export function RunId({ id }) {
  return html`<span class="run-id"><${Link} to=${`runs/${part(id)}`} title=${id}><code>${shortId(id)}</code><//>
    <${CopyButton} text=${id} what="run id" /></span>`;
}

/** Link to the job of a run; to the workflow run for a node; the task for a send. */
export function RunSubject({ run }) {
  const inside = run.workflow;
  if (inside) {
    const name = `${inside.job ?? "workflow"} › ${inside.node}`;
    return html`<${Link} to=${`runs/${part(inside.run_id)}`} terms=${{ node: inside.node }} class="name clip" title=${`${name}, task ${run.task}`}>${name}<//>`;
  }
  if (!run.job) return html`<${Link} to="runs" terms=${{ task: run.task }} class="name clip" title=${`Runs of the task ${run.task}; this one has no job`}><code>${run.task}</code><//>`;
  return html`<${Link} to=${`jobs/${part(run.job_id)}`} class="name clip" title=${`${run.job}, task ${run.task}`}>${run.job}<//>`;
}
