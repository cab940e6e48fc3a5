// States are shown as icon, word and color, never by color alone.
import { html } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { formatTime, formatDuration } from "../lib/time.js";

const LOOKS = {
  succeeded: ["check", "good"], ok: ["check", "good"], live: ["dot", "good"], active: ["dot", "good"], held: ["dot", "good"],
  running: ["play", "busy"], sent: ["sent", "busy"],
  queued: ["clock", "calm"], waiting: ["clock", "calm"], open: ["clock", "calm"], draining: ["half", "calm"], quiet: ["half", "calm"],
  retrying: ["retry", "warn"], late: ["alarm", "warn"], blocked: ["pause", "warn"], paused: ["pause", "warn"], failed: ["cross", "bad"],
  timed_out: ["hourglass", "bad"], dead: ["cross", "bad"], failing: ["cross", "bad"], lost: ["bolt", "bad"], gone: ["cross", "bad"], aborted: ["ban", "mute"],
  ran: ["check", "good"], recovered: ["check", "good"], pending: ["clock", "calm"], planned: ["clock", "mute"], coalesced: ["circle-minus", "mute"],
  missed: ["cross", "bad"], slow: ["hourglass", "warn"], outgrown: ["hourglass", "warn"], blocked_loop: ["hourglass", "warn"], stranded: ["cross", "bad"],
  skipping: ["circle-minus", "warn"], unknown_task: ["cross", "bad"], unstarted: ["cross", "bad"], expired: ["warning", "warn"], orphaned: ["warning", "warn"], adopted: ["check", "good"], overridden: ["retry", "warn"],
  task_paused: ["pause", "warn"], task_resumed: ["dot", "good"],
  cancelled: ["ban", "mute"], skipped: ["circle-minus", "mute"], done: ["check", "mute"], disabled: ["circle", "mute"], stopped: ["circle", "mute"],
  free: ["circle", "mute"], suspended: ["pause", "warn"], revoked: ["ban", "mute"], expired: ["hourglass", "mute"],
};

/** The icon's name and the tone of a state. */
export const look = (state) => LOOKS[state] ?? ["circle", "mute"];

// States that the API calls otherwise in different places.
const WORDS = { ok: "succeeded", ran: "succeeded", quiet: "draining" };
export const stateWord = (state) => WORDS[state] ?? state.replaceAll("_", " ");

export function State({ of, title }) {
  const [icon, tone] = look(of);
  return html`<span class="state tone-${tone}" title=${title}><${Icon} name=${icon} /> ${stateWord(of)}</span>`;
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
