// Actions on a job, shared by all pages. Actions that can be undone run without confirmation.
import { html, useState } from "../lib/html.js";
import { request, get, part, post } from "../lib/api.js";
import { useData } from "../lib/page_data.js";
import { navigate } from "../lib/router.js";
import { formatTime } from "../lib/time.js";
import { DialogForm } from "./dialog_form.js";
import { Link, Time } from "./elements.js";
import { perform, confirm, openDialog, notify } from "./dialog.js";
import { Arguments, JsonField, useTask } from "./arguments.js";
import { SelectField, TextField, faultsAt } from "./field.js";
import { zoneOf } from "./schedule.js";

const LATE_AFTER_MS = 60_000; // milliseconds; a schedule that is later has misfired

export const pathOf = (job) => `jobs/${part(job.job_id)}`;

/** The state of a job; `runs`: its latest runs, newest first. */
export function stateOf(job, runs = []) {
  if (!job.enabled) return "disabled";
  if (job.paused) return "paused";
  if (job.done_at) return "done";
  if (job.next_at && Date.now() - new Date(job.next_at) > LATE_AFTER_MS) return "late";
  if (!job.next_at && job.schedules.length && job.schedules.every((one) => one.at)) return "done";
  const ended = runs.find((run) => ["succeeded", "dead"].includes(run.state));
  return ended?.state === "dead" ? "failing" : "active";
}

export function stateTitle(job) {
  if (!job.paused) return undefined;
  const { by, at, until, reason } = job.paused;
  return [`paused ${by ? `by ${by} ` : ""}on ${formatTime(at)}`, until && `until ${formatTime(until)}`, reason].filter(Boolean).join(" · ");
}

function notifyStarted(job, run) {
  notify(`Started ${job.name}`, { to: html`<${Link} to=${`runs/${part(run.run_id)}`}>Show the run<//>` });
}

/** Runs the job at once with its own arguments. */
export async function runNow(job) {
  const run = await perform(() => post(`${pathOf(job)}/run`, {}));
  if (run) notifyStarted(job, run);
}

export async function pause(job, body = {}) {
  const undo = () => post(`${pathOf(job)}/resume`, { missed: "all" });
  return perform(() => post(`${pathOf(job)}/pause`, body), `Paused ${job.name}`, { undo });
}

export async function resume(job, missed = "skip") {
  const before = job.paused ?? {};
  const undo = () => post(`${pathOf(job)}/pause`, { ...(before.reason && { reason: before.reason }), ...(before.until && { until: before.until }) });
  const say = (done) => `Resumed ${job.name}${done.missed ? `; the pause covered ${done.missed} occurrences (${missed})` : ""}`;
  return perform(() => post(`${pathOf(job)}/resume`, { missed }), say, { undo });
}

export async function skipAt(job, at, reason) {
  const undo = () => unskip(job, at);
  return perform(() => post(`${pathOf(job)}/skip`, { at, ...(reason && { reason }) }), `${job.name} will be skipped at ${formatTime(at, zoneOf(job))}`, { undo });
}

export const unskip = (job, at) => request("DELETE", `${pathOf(job)}/skip`, { terms: { at } });

export function remove(job, then = () => {}) {
  confirm({
    title: `Delete ${job.name}?`,
    verb: `Delete ${job.name}`,
    note: "It will not fire again. Executing runs finish, and the history stays.",
    act: () => request("DELETE", pathOf(job)),
    done: () => {
      then();
      return `Deleted ${job.name}`;
    },
  });
}

/** Describes the parameters of a workflow. */
function paramsOf(graph) {
  const named = Object.entries(graph?.params ?? {}).map(([name, one]) => ("default" in one ? `${name} (optional)` : name));
  return named.length ? `parameters: ${named.join(", ")}` : "a JSON object";
}

export function askRun(job) {
  openDialog(`Run ${job.name} now`, function Run({ close }) {
    const task = useTask(job.http || job.workflow ? "" : job.task);
    const graph = useData((stop) => (job.workflow ? get(`${pathOf(job)}/graph`, {}, stop) : null), [], { once: true });
    const [kwargs, setKwargs] = useState(job.kwargs);
    const [args, setArgs] = useState(job.args);
    const [wrong, setWrong] = useState([]);
    async function act() {
      const run = await post(`${pathOf(job)}/run`, job.http ? {} : { args, kwargs });
      notifyStarted(job, run);
      return run;
    }
    return html`<${DialogForm} close=${close} verb="Run now" act=${act} ready=${wrong.length === 0 && ![args, kwargs].some((one) => one instanceof Error)}>${(faults) => html`
      <p class="mute">${job.http ? "The URL is called once, independent of the schedule." : "These arguments apply only to this run."}</p>
      ${job.workflow && html`<${JsonField} label="Parameters" value=${kwargs} set=${setKwargs} hint=${paramsOf(graph.data)} faults=${faultsAt(faults, "/kwargs")} />`}
      ${!job.http && !job.workflow && task.data !== undefined && html`<${Arguments} task=${task.data} value=${kwargs} set=${setKwargs} refuse=${setWrong}
        faults=${(name) => faultsAt(faults, name ? `/kwargs/${name}` : "/kwargs")} />`}
      ${!job.http && job.args.length > 0 && html`<${JsonField} label="Positional arguments" value=${args} set=${setArgs} rows=${3}
        faults=${faultsAt(faults, "/args")} />`}`}<//>`;
  });
}

export function askPause(job) {
  openDialog(`Pause ${job.name}`, function Pause({ close }) {
    const [reason, setReason] = useState("");
    const [until, setUntil] = useState("");
    const act = async () => {
      await post(`${pathOf(job)}/pause`, { ...(reason && { reason }), ...(until && { until }) });
      notify(`Paused ${job.name}`, { undo: () => post(`${pathOf(job)}/resume`, { missed: "all" }) });
      return true;
    };
    return html`<${DialogForm} close=${close} verb="Pause" act=${act}>${(faults) => html`
      <p class="mute">Occurrences during the pause do not run. When you resume the job, you decide what happens to them.</p>
      <${TextField} label="Reason" hint="shown with the job" value=${reason} set=${setReason} faults=${faultsAt(faults, "/reason")} />
      <${TextField} label="Until" hint="a duration such as 2h or 3d, or a time; leave empty to pause until resumed" value=${until} set=${setUntil}
        faults=${faultsAt(faults, "/until")} />`}<//>`;
  });
}

const MISSED = { skip: "Skip them", latest: "Run only the latest", all: "Run all of them, with low priority" };

export function askResume(job) {
  openDialog(`Resume ${job.name}`, function Resume({ close }) {
    const [missed, setMissed] = useState("skip");
    const act = async () => (await resume(job, missed)) ?? true;
    return html`<${DialogForm} close=${close} verb="Resume" act=${act}>${() => html`
      ${job.paused && html`<p class="mute">${stateTitle(job)}</p>`}
      <fieldset><legend>Occurrences during the pause</legend>
        ${Object.entries(MISSED).map(([value, text]) => html`<p><label><input type="radio" name="missed" checked=${missed === value}
          onChange=${() => setMissed(value)} /> ${text}</label></p>`)}
      </fieldset>`}<//>`;
  });
}

const REPROCESS = { none: "not succeeded yet", failed: "failed only", all: "all, again" };
const ORDER = { oldest: "oldest first", newest: "newest first" };

export function askBackfill(job) {
  openDialog(`Backfill ${job.name}`, function Backfill({ close }) {
    const [asked, setAsked] = useState({ from: "", to: "", reprocess: "none", order: "oldest", parallelism: "1" });
    const [plan, setPlan] = useState(null);
    const change = (name) => (value) => {
      setPlan(null);
      setAsked({ ...asked, [name]: value });
    };
    const body = { job: job.job_id, ...asked, parallelism: Number(asked.parallelism) || 1 };
    async function act() {
      if (!plan) return void setPlan(await post("backfills", { ...body, dry_run: true }));
      const made = await post("backfills", { ...body, plan: plan.plan });
      notify(`Started backfill ${made.backfill_id} of ${plan.to_run} occurrences`);
      navigate(`jobs/${part(job.job_id)}`, { tab: "runs" });
      return made;
    }
    const verb = plan ? `Run ${plan.to_run.toLocaleString("en")} occurrences` : "Preview";
    return html`<${DialogForm} close=${close} verb=${verb} act=${act} ready=${asked.from && asked.to && plan?.to_run !== 0}>${(faults) => html`
      <p class="mute">Runs past occurrences with low priority. Times are in the job's time zone (${zoneOf(job)}).</p>
      <div class="fields">
        <${TextField} type="datetime-local" label="From" hint="inclusive" value=${asked.from} set=${change("from")}
          faults=${faultsAt(faults, "/from")} required />
        <${TextField} type="datetime-local" label="To" hint="exclusive" value=${asked.to} set=${change("to")} faults=${faultsAt(faults, "/to")} required />
        <${SelectField} label="Occurrences" of=${REPROCESS} value=${asked.reprocess} set=${change("reprocess")} />
        <${SelectField} label="Order" of=${ORDER} value=${asked.order} set=${change("order")} />
        <${TextField} label="Parallelism" mode="numeric" value=${asked.parallelism} set=${change("parallelism")} faults=${faultsAt(faults, "/parallelism")} />
      </div>
      ${plan && html`<p role="status" class="verdict tone-calm">
        ${plan.count.toLocaleString("en")} occurrences, ${plan.exact ? "" : "at least "}${plan.already_ran.toLocaleString("en")} already ran:
        <strong> ${plan.to_run.toLocaleString("en")} to run</strong>${plan.first && html`, from <${Time} at=${plan.first} job=${zoneOf(job)}
          short=${false} /> to <${Time} at=${plan.last} job=${zoneOf(job)} short=${false} />`}.</p>`}`}<//>`;
  });
}
