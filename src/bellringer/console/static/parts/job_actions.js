// What can be done to a job, for every page that shows one. What can be undone is done at once.
import { html, useState } from "../lib/html.js";
import { ask, get, part, post } from "../lib/api.js";
import { useData } from "../lib/load.js";
import { go } from "../lib/place.js";
import { full } from "../lib/time.js";
import { Ask } from "./ask.js";
import { Link, When } from "./basics.js";
import { attempt, confirm, show, tell } from "./dialog.js";
import { Arguments, JsonField, useTask } from "./arguments.js";
import { Select, Text, faultsAt } from "./field.js";
import { zoneOf } from "./schedule.js";

const LATE = 60_000; // milliseconds past its time after which a hand has misfired

export const pathOf = (job) => `jobs/${part(job.job_id)}`;

/** The state of a job in one word; `runs` are its last ones, newest first. */
export function stateOf(job, runs = []) {
  if (!job.enabled) return "disabled";
  if (job.paused) return "paused";
  if (job.next_at && Date.now() - new Date(job.next_at) > LATE) return "late";
  if (!job.next_at && job.schedules.length && job.schedules.every((one) => one.at)) return "done";
  const ended = runs.find((run) => ["succeeded", "dead"].includes(run.state));
  return ended?.state === "dead" ? "failing" : "active";
}

export function stateTitle(job) {
  if (!job.paused) return undefined;
  const { by, at, until, reason } = job.paused;
  return [`paused ${by ? `by ${by} ` : ""}on ${full(at)}`, until && `until ${full(until)}`, reason].filter(Boolean).join(" · ");
}

function started(job, run) {
  tell(`${job.name} runs`, { to: html`<${Link} to=${`runs/${part(run.run_id)}`}>See the run<//>` });
}

/** At once, with the arguments that the job has. */
export async function runNow(job) {
  const run = await attempt(() => post(`${pathOf(job)}/run`, {}));
  if (run) started(job, run);
}

export async function pause(job, body = {}) {
  const undo = () => post(`${pathOf(job)}/resume`, { missed: "all" });
  return attempt(() => post(`${pathOf(job)}/pause`, body), `${job.name} is paused`, { undo });
}

export async function resume(job, missed = "skip") {
  const before = job.paused ?? {};
  const undo = () => post(`${pathOf(job)}/pause`, { ...(before.reason && { reason: before.reason }), ...(before.until && { until: before.until }) });
  const say = (done) => `${job.name} goes on${done.missed ? `; its pause covered ${done.missed} occurrences (${missed})` : ""}`;
  return attempt(() => post(`${pathOf(job)}/resume`, { missed }), say, { undo });
}

export async function skipAt(job, at, reason) {
  const undo = () => unskip(job, at);
  return attempt(() => post(`${pathOf(job)}/skip`, { at, ...(reason && { reason }) }), `${job.name} will not run at ${full(at, zoneOf(job))}`, { undo });
}

export const unskip = (job, at) => ask("DELETE", `${pathOf(job)}/skip`, { terms: { at } });

export function remove(job, then = () => {}) {
  confirm({
    title: `Delete ${job.name}?`,
    verb: `Delete ${job.name}`,
    note: "Its future ends. What runs finishes, and its history stays.",
    act: () => ask("DELETE", pathOf(job)),
    done: () => {
      then();
      return `${job.name} is deleted`;
    },
  });
}

/** What a workflow can be given, in words. */
function paramsOf(graph) {
  const named = Object.entries(graph?.params ?? {}).map(([name, one]) => ("default" in one ? `${name} (may be left out)` : name));
  return named.length ? `it takes ${named.join(", ")}` : "a JSON object";
}

export function askRun(job) {
  show(`Run ${job.name} now`, function Run({ close }) {
    const task = useTask(job.http || job.workflow ? "" : job.task);
    const graph = useData((stop) => (job.workflow ? get(`${pathOf(job)}/graph`, {}, stop) : null), [], { still: true });
    const [kwargs, set] = useState(job.kwargs);
    const [args, position] = useState(job.args);
    const [wrong, refuse] = useState([]);
    async function act() {
      const run = await post(`${pathOf(job)}/run`, job.http ? {} : { args, kwargs });
      started(job, run);
      return run;
    }
    return html`<${Ask} close=${close} verb="Run now" act=${act} ready=${wrong.length === 0 && ![args, kwargs].some((one) => one instanceof Error)}>${(faults) => html`
      <p class="mute">${job.http ? "It calls its URL once, whatever its schedule says." : "These arguments hold for this run alone."}</p>
      ${job.workflow && html`<${JsonField} label="Params" value=${kwargs} set=${set} hint=${paramsOf(graph.data)} faults=${faultsAt(faults, "/kwargs")} />`}
      ${!job.http && !job.workflow && task.data !== undefined && html`<${Arguments} task=${task.data} value=${kwargs} set=${set} refuse=${refuse}
        faults=${(name) => faultsAt(faults, name ? `/kwargs/${name}` : "/kwargs")} />`}
      ${!job.http && job.args.length > 0 && html`<${JsonField} label="Positional arguments" value=${args} set=${position} rows=${3}
        faults=${faultsAt(faults, "/args")} />`}`}<//>`;
  });
}

export function askPause(job) {
  show(`Pause ${job.name}`, function Pause({ close }) {
    const [reason, because] = useState("");
    const [until, choose] = useState("");
    const act = async () => {
      await post(`${pathOf(job)}/pause`, { ...(reason && { reason }), ...(until && { until }) });
      tell(`${job.name} is paused`, { undo: () => post(`${pathOf(job)}/resume`, { missed: "all" }) });
      return true;
    };
    return html`<${Ask} close=${close} verb="Pause" act=${act}>${(faults) => html`
      <p class="mute">What falls due meanwhile does not run; when it is resumed you say what becomes of it.</p>
      <${Text} label="Reason" hint="shown wherever the job is" value=${reason} set=${because} faults=${faultsAt(faults, "/reason")} />
      <${Text} label="Until" hint="a length such as 2h or 3d, or an instant; empty: until it is resumed" value=${until} set=${choose}
        faults=${faultsAt(faults, "/until")} />`}<//>`;
  });
}

const MISSED = { skip: "Skip it: go on with the next occurrence", latest: "Run the latest of it, once", all: "Run all of it, behind live work" };

export function askResume(job) {
  show(`Resume ${job.name}`, function Resume({ close }) {
    const [missed, choose] = useState("skip");
    const act = async () => (await resume(job, missed)) ?? true;
    return html`<${Ask} close=${close} verb="Resume" act=${act}>${() => html`
      ${job.paused && html`<p class="mute">${stateTitle(job)}</p>`}
      <fieldset><legend>What it missed meanwhile</legend>
        ${Object.entries(MISSED).map(([value, text]) => html`<p><label><input type="radio" name="missed" checked=${missed === value}
          onChange=${() => choose(value)} /> ${text}</label></p>`)}
      </fieldset>`}<//>`;
  });
}

const REPROCESS = { none: "what has not succeeded", failed: "only what has failed", all: "everything, once more" };
const ORDER = { oldest: "oldest first", newest: "newest first" };

export function askBackfill(job) {
  show(`Backfill ${job.name}`, function Backfill({ close }) {
    const [asked, set] = useState({ from: "", to: "", reprocess: "none", order: "oldest", parallelism: "1" });
    const [plan, planned] = useState(null);
    const change = (name) => (value) => {
      planned(null);
      set({ ...asked, [name]: value });
    };
    const body = { job: job.job_id, ...asked, parallelism: Number(asked.parallelism) || 1 };
    async function act() {
      if (!plan) return void planned(await post("backfills", { ...body, dry_run: true }));
      const made = await post("backfills", { ...body, plan: plan.plan });
      tell(`backfill ${made.backfill_id} of ${plan.to_run} occurrences has begun`);
      go(`jobs/${part(job.job_id)}`, { tab: "runs" });
      return made;
    }
    const verb = plan ? `Run ${plan.to_run.toLocaleString("en")} occurrences` : "Count first";
    return html`<${Ask} close=${close} verb=${verb} act=${act} ready=${asked.from && asked.to && plan?.to_run !== 0}>${(faults) => html`
      <p class="mute">Runs occurrences of the past, behind live work. Times are in the job's zone (${zoneOf(job)}).</p>
      <div class="fields">
        <${Text} type="datetime-local" label="From" hint="in the range" value=${asked.from} set=${change("from")}
          faults=${faultsAt(faults, "/from")} required />
        <${Text} type="datetime-local" label="To" hint="no more in it" value=${asked.to} set=${change("to")} faults=${faultsAt(faults, "/to")} required />
        <${Select} label="Which" of=${REPROCESS} value=${asked.reprocess} set=${change("reprocess")} />
        <${Select} label="Order" of=${ORDER} value=${asked.order} set=${change("order")} />
        <${Text} label="At once" mode="numeric" value=${asked.parallelism} set=${change("parallelism")} faults=${faultsAt(faults, "/parallelism")} />
      </div>
      ${plan && html`<p role="status" class="verdict tone-calm">
        ${plan.count.toLocaleString("en")} occurrences, ${plan.already_ran.toLocaleString("en")} have run${plan.exact ? "" : " at least"}:
        <strong> ${plan.to_run.toLocaleString("en")} to run</strong>${plan.first && html`, from <${When} at=${plan.first} job=${zoneOf(job)}
          short=${false} /> to <${When} at=${plan.last} job=${zoneOf(job)} short=${false} />`}.</p>`}`}<//>`;
  });
}
