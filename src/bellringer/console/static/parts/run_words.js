// Words about runs, for every page that shows one.
import { html, useState } from "../lib/html.js";
import { part } from "../lib/api.js";
import { now, seconds, span } from "../lib/time.js";
import { Link, copy } from "./basics.js";

export const STATES = ["running", "queued", "blocked", "retrying", "waiting", "succeeded", "dead", "cancelled", "skipped"];
export const CAUSES = ["schedule", "manual", "send", "backfill", "catchup", "replay", "workflow", "webhook"];
export const CANCELLABLE = ["running", "queued", "blocked", "retrying", "waiting"];
export const RETRIABLE = ["dead", "retrying"];
export const isOver = (run) => ["succeeded", "dead", "cancelled", "skipped"].includes(run.state);

/** An error in one line, or the words that stand for one. */
export function headline(of) {
  const error = of?.error;
  if (!error || typeof error !== "object") return error ? String(error) : (of?.reason ?? "");
  return [error.type, error.message].filter(Boolean).join(": ") || error.reason || of.reason || "";
}

/** Why nobody may take it yet, in words. */
export const heldBy = (run) => run.blocked.map((one) => one.replaceAll("_", " ")).join(", ");

/** How far it has come, as its handler says. */
export function progressOf(run) {
  const { done, total, note } = run.progress ?? {};
  if (done === undefined && !note) return "";
  const far = done === undefined ? "" : total ? `${done} of ${total} (${Math.floor((Number(done) / Number(total)) * 100)} %)` : String(done);
  return [far, note].filter(Boolean).join(" · ");
}

/** How long it took, or takes until now. */
export function Took({ run }) {
  if (!run.started_at || (!run.finished_at && run.state !== "running")) return "–";
  return span(run.finished_at ? seconds(run.started_at, run.finished_at) : Math.max(0, (now.value - new Date(run.started_at)) / 1000));
}

export const lateBy = (run) => (run.lateness_ms === null ? "–" : span(Math.max(0, run.lateness_ms) / 1000));

/** The end of an id is what differs between two of them. */
export const shortId = (id) => (id.length > 16 ? `…${id.slice(-10)}` : id);

export function CopyButton({ text, what }) {
  const [done, tell] = useState(false);
  async function take() {
    await copy(text);
    tell(true);
    setTimeout(() => tell(false), 1500);
  }
  const label = done ? `${what} copied` : `copy ${what}`;
  return html`<button type="button" class="quiet icon" aria-label=${label} title=${label} onClick=${take}><span aria-hidden="true">${done ? "✓" : "❐"}</span>
    </button>`;
}

/** A run's id, short, with a way to copy all of it. */
export function RunId({ id }) {
  return html`<span class="run-id"><${Link} to=${`runs/${part(id)}`} title=${id}><code>${shortId(id)}</code><//>
    <${CopyButton} text=${id} what="the run's id" /></span>`;
}

/** Of which job it is; the run of a node has its workflow run, and what was sent goes by its task. */
export function Whose({ run }) {
  const inside = run.workflow;
  if (inside) {
    const name = `${inside.job ?? "workflow"} › ${inside.node}`;
    return html`<${Link} to=${`runs/${part(inside.run_id)}`} terms=${{ node: inside.node }} class="name clip" title=${`${name}, task ${run.task}`}>${name}<//>`;
  }
  if (!run.job) return html`<code class="clip" title=${`${run.task}, without a job`}>${run.task}</code>`;
  return html`<${Link} to=${`jobs/${part(run.job_id)}`} class="name clip" title=${`${run.job}, task ${run.task}`}>${run.job}<//>`;
}
