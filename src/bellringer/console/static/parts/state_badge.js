// States are shown as icon, word and color, never by color alone.
import { html } from "../lib/html.js";
import { formatTime, formatDuration } from "../lib/time.js";

const LOOKS = {
  succeeded: ["✓", "good"], ok: ["✓", "good"], live: ["●", "good"], active: ["●", "good"], held: ["●", "good"],
  running: ["▶", "busy"], sent: ["➚", "busy"],
  queued: ["◷", "calm"], waiting: ["◷", "calm"], open: ["◷", "calm"], draining: ["◒", "calm"], quiet: ["◒", "calm"],
  retrying: ["↻", "warn"], late: ["⏰", "warn"], blocked: ["❚❚", "warn"], paused: ["❚❚", "warn"], failed: ["✕", "bad"], timed_out: ["⌛", "bad"],
  dead: ["✕", "bad"], failing: ["✕", "bad"], lost: ["⚡", "bad"], gone: ["✕", "bad"], aborted: ["⊘", "mute"],
  ran: ["✓", "good"], recovered: ["✓", "good"], pending: ["◷", "calm"], planned: ["◷", "mute"], coalesced: ["⊝", "mute"], missed: ["✕", "bad"], slow: ["⌛", "warn"], outgrown: ["⌛", "warn"], blocked_loop: ["⌛", "warn"], stranded: ["✕", "bad"], skipping: ["⊝", "warn"], unknown_task: ["✕", "bad"], orphaned: ["⚠", "warn"], adopted: ["✓", "good"], overridden: ["↻", "warn"], task_paused: ["❚❚", "warn"], task_resumed: ["●", "good"],
  cancelled: ["⊘", "mute"], skipped: ["⊝", "mute"], done: ["✓", "mute"], disabled: ["○", "mute"], stopped: ["○", "mute"], free: ["○", "mute"],
  suspended: ["❚❚", "warn"], revoked: ["⊘", "mute"], expired: ["⌛", "mute"],
};

export const look = (state) => LOOKS[state] ?? ["•", "mute"];

export function State({ of, title }) {
  const [icon, tone] = look(of);
  return html`<span class="state tone-${tone}" title=${title}><span aria-hidden="true">${icon}</span> ${of.replaceAll("_", " ")}</span>`;
}

/** The latest runs of a job as bars, newest on the right. */
export function Strip({ runs, job }) {
  if (!runs?.length) return html`<span class="mute">no runs yet</span>`;
  const words = runs.filter((run) => ["dead", "failed", "lost", "timed_out"].includes(run.state)).length;
  const label = `last ${runs.length} runs, ${words} failed`;
  return html`<span class="strip" role="img" aria-label=${label}>
    ${runs.toReversed().map((run) => html`<span class="bar tone-${look(run.state)[1]}" title=${`${formatTime(run.scheduled_for, job)} · ${run.state}${run.seconds == null ? "" : ` · ${formatDuration(run.seconds)}`}`}></span>`)}
  </span>`;
}
