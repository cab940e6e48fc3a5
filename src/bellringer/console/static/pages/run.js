// One run: its outcome and logs first, then attempts, arguments, result and context.
import { html, useState } from "../lib/html.js";
import { get, may, part, post } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { useData } from "../lib/page_data.js";
import { useShortcuts } from "../lib/shortcuts.js";
import { write } from "../lib/json.js";
import { navigate, setQuery, query } from "../lib/router.js";
import { now, secondsBetween, formatDuration } from "../lib/time.js";
import { JsonField } from "../parts/arguments.js";
import { copyItems } from "../parts/copy_as.js";
import { DialogForm } from "../parts/dialog_form.js";
import { Attempts, RunTimeBar } from "../parts/attempts.js";
import { Card, DescriptionList, Json, Link, Loading, Tabs, Time, copy } from "../parts/elements.js";
import { perform, confirm, openDialog, notify } from "../parts/dialog.js";
import { TextField, faultsAt } from "../parts/field.js";
import { WorkflowRun, canRetryNodes, useGraph } from "../parts/workflow_run.js";
import { Logs } from "../parts/logs.js";
import { retryAll } from "../parts/node_actions.js";
import { Menu } from "../parts/menu.js";
import { usePollingWhile } from "../parts/operations.js";
import { CANCELLABLE, CopyButton, RETRIABLE, RunId, RunDuration, errorSummary, blockReasons, hasEnded, formatLateness, progressText, shortId, workerName } from "../parts/run_text.js";
import { zoneOf } from "../parts/schedule.js";
import { look } from "../parts/state_badge.js";
import { Why, whyRun } from "../parts/why.js";

const NEIGHBOR_LIMIT = 60;
const MAX_LINKED_NODES = 3;
const TABS = { nodes: "Nodes", run: "Run" }; // tabs of a workflow run
const NODE_PARAMETERS = { view: "", node: "", element: "", state: "", dir: "", follow: "" };
const pathOf = (run) => `runs/${part(run.run_id)}`;

export default function RunPage({ parts }) {
  const found = useData((stop) => get(`runs/${part(parts.id)}`, {}, stop), [parts.id]);
  usePollingWhile(found.data ? !hasEnded(found.data) : false, found.reload, 2000);
  return html`<${Loading} of=${found}>${(run) => html`<${Page} run=${run} reload=${found.reload} />`}<//>`;
}

/** The job of the run, for its time zone. Sends and runs of deleted jobs have none. */
function useJob(run) {
  return useData((stop) => (run.job ? get(`jobs/${part(run.job_id)}`, {}, stop).catch(() => null) : null), [run.job_id], { once: true }).data ?? null;
}

/** Workers by id, as far as the server still lists them: a run carries only the number of its worker. */
function useWorkers(run) {
  const ids = [run.worker_id, ...run.attempts.map((one) => one.worker_id)].filter((id) => id !== null);
  const found = useData((stop) => (ids.length ? get("workers", {}, stop).catch(() => null) : null), [ids.join()], { once: true }).data;
  return new Map((found?.items ?? []).map((one) => [one.worker_id, one.name]));
}

function Page({ run, reload }) {
  const graph = useGraph(run);
  const job = useJob(run);
  const workers = useWorkers(run);
  const zone = job ? zoneOf(job) : undefined;
  const retriable = RETRIABLE.includes(run.state);
  const actions = {
    retry: () => perform(() => retry(run).then(reload), "Retrying the run"),
    cancel: () => askCancel(run, reload),
    retryNodes: canRetryNodes(graph.data) && (() => retryAll(graph.data, () => (reload(), graph.reload()))),
    replay: () => askReplay(run),
  };
  useShortcuts(
    {
      e: ["explain", () => whyRun(run)],
      ...(run.job && { "[": ["previous run of the job", () => goToNeighbor(run, -1)], "]": ["next run of the job", () => goToNeighbor(run, 1)] }),
      ...(may("operator") && retriable && { r: ["retry", actions.retry] }),
    },
    "Run",
    [run.run_id, run.state],
  );
  const tab = query.value.get("tab") === "run" ? "run" : "nodes";
  const itself = html`<${RunDetails} run=${run} zone=${zone} workers=${workers} />`;
  return html`<${Crumbs} run=${run} />
    <header class="head"><h1>${run.workflow?.node ?? run.job ?? run.task}</h1>
      <span class="mute"><${Time} at=${run.scheduled_for} job=${zone} short=${false} /></span><span class="gap"></span>
      <${Buttons} run=${run} acts=${actions} /></header>
    <${Verdict} run=${run} zone=${zone} workers=${workers} />
    ${!run.has_nodes && html`<${RunTimeBar} run=${run} />`}
    ${run.has_nodes
      ? html`<${Tabs} tabs=${TABS} chosen=${tab} choose=${(next) => setQuery({ ...NODE_PARAMETERS, tab: next === "nodes" ? "" : next })} />
        <div role="tabpanel" aria-label=${TABS[tab]}>${tab === "nodes" ? html`<${WorkflowRun} run=${run} found=${graph} />` : itself}</div>`
      : itself}`;
}

/** Breadcrumbs: the job, the node of a workflow run, or the task of a send. */
function Crumbs({ run }) {
  const own = run.job ? html`<${Link} to=${`jobs/${part(run.job_id)}`}>${run.job}<//>` : html`<code>${run.task}</code>`;
  const node = run.workflow;
  const inside = node && html`<${Link} to=${`jobs/${part(node.job_id)}`}>${node.job ?? "a workflow"}<//> / <${Link} to=${`runs/${part(node.run_id)}`}
    terms=${{ node: node.node }}>workflow run <code>${shortId(node.run_id)}</code><//> / ${node.node}`;
  return html`<nav class="crumbs" aria-label="Breadcrumbs"><${Link} to="runs">Runs<//> / ${inside ?? own} / <code>${shortId(run.run_id)}</code></nav>`;
}

/** A dead node is retried through its workflow run, together with the nodes after it. */
function retry(run) {
  if (run.state !== "dead" || !run.workflow) return post(`${pathOf(run)}/retry`);
  return post(`runs/${part(run.workflow.run_id)}/nodes/retry`, { nodes: [run.workflow.node] });
}

/** Details of any run. A run that has begun shows its logs first, one that has not the reasons why it waits. */
function RunDetails({ run, zone, workers }) {
  const hasBegun = run.attempts.some((one) => one.attempt > 0) || run.state === "running";
  const why = !hasEnded(run) && (run.state !== "running" || run.has_nodes) && html`<${Card} title=${STATE_QUESTIONS[run.state] ?? "Why is it in this state?"} wide=${!hasBegun}><${Why} path=${`${pathOf(run)}/explain`} /><//>`;
  const logs = hasBegun && html`<section class="card wide run-logs" id="logs" aria-label="Logs"><${Logs} run=${run} zone=${zone} /></section>`;
  const attempts = run.attempts.length > 0 && html`<${Card} title="Attempts" wide=${true}><${Attempts} run=${run} zone=${zone} workers=${workers} /><//>`;
  const isDead = run.state === "dead"; // its traceback comes before its logs
  return html`${run.has_nodes && html`<${RunTimeBar} run=${run} />`}
    ${isDead && attempts && html`<div class="cards pair">${attempts}</div>`}
    ${hasBegun ? logs : why}
    <div class="cards pair">
      ${!isDead && attempts}
      ${hasBegun && why}
      <${Card} title="Arguments" wide=${!hasBegun || !(why || hasOutcome(run))} aside=${html`<${CopyButton} text=${write({ args: run.args, kwargs: run.kwargs }, 2)} what="arguments" />`}>
        <${Payload} run=${run} /><//>
      <${Outcome} run=${run} />
      <${Card} title="Context" wide=${true}>
        <${Context} run=${run} zone=${zone} workers=${workers} /><//>
    </div>`;
}

const STATE_QUESTIONS = { running: "What it is doing", retrying: "Why it waits", queued: "Why it waits", blocked: "Why it is blocked", waiting: "Why it waits" };

const WITH_WORKER = ["running", "succeeded", "dead", "retrying"];

/** The summary: outcome or progress, where it ran, and the error, which the page shows only here. */
function Verdict({ run, zone, workers }) {
  const [icon, tone] = look(run.state);
  const error = ["dead", "retrying", "cancelled", "skipped"].includes(run.state) ? latestError(run) : "";
  return html`<div class="verdict run-verdict tone-${tone === "mute" ? "calm" : tone}"><p><${Icon} name=${icon} /> ${verdictText(run, zone)}${run.worker_id !== null && WITH_WORKER.includes(run.state) && html`<span class="where">on <${Link} to="runs" terms=${{ worker: run.worker_id }} title="Runs of this worker">${workerName(run.worker_id, workers)}<//></span>`}</p>
    ${error && html`<p class="run-error">${error}</p>`}<${ErrorLinks} run=${run} />${run.state === "running" && html`<${Bar} run=${run} />`}</div>`;
}

/** From a dead run to the nodes that failed, or to the dead letters of its job. */
function ErrorLinks({ run }) {
  if (run.state !== "dead" || run.workflow) return null;
  const element = /^node (\S+\[\d+\]) failed: /.exec(run.error?.message ?? "")?.[1]; // the failed element of a map
  const nodes = run.has_nodes ? (element ? [element] : (run.error?.nodes ?? []).slice(0, MAX_LINKED_NODES)) : [];
  return html`<p class="more-links">${nodes.map((node) => html`<${Link} key=${node} to=${pathOf(run)} terms=${{ node }}>Show ${node}<//> `)}
    ${run.job && html`<${Link} to="dead-letters" terms=${{ job: run.job }}>Dead letters of this job<//>`}</p>`;
}

/** The error of a run that has ended, or of the last attempt of one that is retried. */
const latestError = (run) => errorSummary(run) || errorSummary(run.attempts.at(-1));

const STATE_TEXTS = { queued: "Waiting for a worker", blocked: "Blocked", waiting: "Not due yet", cancelled: "Cancelled", skipped: "Skipped" };

function verdictText(run, zone) {
  const tries = run.attempt > 1 ? ` on attempt ${run.attempt}` : "";
  if (run.state === "succeeded") return html`<strong>Succeeded</strong>${tries} in <${RunDuration} run=${run} /> `;
  if (run.has_nodes && run.state === "dead") return html`<strong>Dead</strong> after <${RunDuration} run=${run} /> `;
  const after = `after ${run.attempt === 1 ? "1 attempt" : `${run.attempt} attempts`}`;
  if (run.state === "running") {
    const far = [run.cancel_requested && ", cancel requested", progressText(run) && `: ${progressText(run)}`].filter(Boolean).join("");
    return html`<strong>Running</strong> for <${RunDuration} run=${run} />${tries}${far} `;
  }
  if (run.state === "retrying") return html`<strong>Next attempt <${Time} at=${run.available_at} job=${zone} /></strong> ${after} `;
  if (run.state === "dead") return html`<strong>Dead ${after}</strong> `;
  if (!hasEnded(run) && new Date(run.available_at) > now.value) return html`<strong>Not due yet</strong>, starts <${Time} at=${run.available_at} job=${zone} /> `;
  const waits = STATE_TEXTS[run.state] ?? run.state;
  const more = run.state === "blocked" && run.blocked.length ? blockReasons(run) : "";
  return html`<strong>${waits}</strong>${!hasEnded(run) && html` for <${WaitingTime} run=${run} />`}${more && `: ${more}`} `;
}

function WaitingTime({ run }) {
  const from = run.available_at ?? run.fired_at ?? run.scheduled_for;
  return formatDuration(Math.max(0, (now.value - new Date(from)) / 1000));
}

function Bar({ run }) {
  const { done, total } = run.progress ?? {};
  if (!total) return null;
  return html`<progress class="progress" max=${Number(total)} value=${Number(done)} aria-label=${progressText(run)}></progress>`;
}

function Buttons({ run, acts: actions }) {
  const canRetry = may("operator") && RETRIABLE.includes(run.state) && !run.has_nodes;
  const canReplay = may("operator") && hasEnded(run) && !run.workflow;
  return html`<div class="tools head-actions" role="group" aria-label="Actions">
    ${actions.retryNodes && html`<button type="button" class="main" onClick=${actions.retryNodes}><${Icon} name="retry" /> Retry all failed</button>`}
    ${canRetry && html`<button type="button" class="main" onClick=${actions.retry}><${Icon} name="retry" /> ${run.state === "dead" ? "Retry" : "Retry now"}</button>`}
    ${canReplay && html`<button type="button" onClick=${actions.replay}title="Run it again, with the same or other arguments">Replay…</button>`}
    ${may("operator") && CANCELLABLE.includes(run.state) && html`<button type="button" class="danger" disabled=${run.cancel_requested} onClick=${actions.cancel}>
      ${run.cancel_requested ? "Cancel requested" : "Cancel…"}</button>`}
    ${run.job && html`<button type="button" class="quiet icon roomy-only" aria-label="Previous run of the job" title="Previous run of the job ([)" onClick=${() => goToNeighbor(run, -1)}><${Icon} name="chevron-left" /></button>
    <button type="button" class="quiet icon roomy-only" aria-label="Next run of the job" title="Next run of the job (])" onClick=${() => goToNeighbor(run, 1)}><${Icon} name="chevron-right" /></button>`}
    <${Menu} label="More actions" items=${[
      { icon: "help", text: "Explain", act: () => whyRun(run), hint: "e" },
      { icon: "copy", text: "Copy run id", act: () => copy(run.run_id).then(() => notify("Copied the run id")) },
      run.job && { icon: "chevron-left", text: "Previous run of the job", act: () => goToNeighbor(run, -1), hint: "[" },
      run.job && { icon: "chevron-right", text: "Next run of the job", act: () => goToNeighbor(run, 1), hint: "]" },
      ...copyItems({ share: {}, cli: `bellringer runs get ${run.run_id}`, path: pathOf(run) }),
      { icon: "runs", text: "All runs of this task", to: "runs", terms: { task: run.task } },
    ]} />
  </div>`;
}

function Payload({ run }) {
  const none = !run.args.length && !Object.keys(run.kwargs).length;
  if (none) return html`<p class="mute">None.</p>`;
  return html`${run.args.length > 0 && html`<p class="mute">Positional</p><${Json} value=${run.args} label="Positional arguments" />`}
    ${Object.keys(run.kwargs).length > 0 && html`${run.args.length > 0 && html`<p class="mute">Keyword</p>`}<${Json} value=${run.kwargs}
      label="Keyword arguments" />`}`;
}

function errorDetails(run) {
  const { traceback: _traceback, type: _type, message: _message, reason: _reason, ...more } = run.error && typeof run.error === "object" ? run.error : {};
  if (run.has_nodes) delete more.nodes; // the summary links to them
  return more;
}

const hasOutcome = (run) => run.state === "succeeded" || (hasEnded(run) && Object.keys(errorDetails(run)).length > 0);

/** The result, or those parts of the error that neither the summary nor the traceback of the attempt shows. */
function Outcome({ run }) {
  if (!hasOutcome(run)) return null;
  if (run.state === "succeeded") {
    const isEmpty = run.result === null;
    return html`<${Card} title="Result" aside=${!isEmpty && html`<${CopyButton} text=${write(run.result, 2)} what="result" />`}>
      ${isEmpty ? html`<p class="mute">None.</p>` : html`<${Json} value=${run.result} label="Result" />`}<//>`;
  }
  return html`<${Card} title="Error details"><${Json} value=${errorDetails(run)} label="Error details" /><//>`;
}

/** Runs are created ahead of their time, so that they can start on time. */
const offsetText = (length) => (Math.abs(length) < 1 ? "on time" : `${formatDuration(length)} ${length < 0 ? "before" : "after"} the scheduled time`);

/** What the run is of, when it ran, and where. */
function Context({ run, zone, workers }) {
  const at = (instant) => instant && html`<${Time} at=${instant} job=${zone} short=${false} />`;
  const first = run.attempts.find((one) => one.started_at)?.started_at ?? run.started_at;
  const reason = run.reason || run.error?.reason;
  const columns = [
    [
      ["Job", run.job ? html`<${Link} to=${`jobs/${part(run.job_id)}`}>${run.job}<//>` : run.workflow ? html`<span>node <${Link} to=${`runs/${part(run.workflow.run_id)}`}
        terms=${{ node: run.workflow.node }}>${run.workflow.node}<//> of ${run.workflow.job ?? "a workflow"}</span>` : "none (sent directly)"],
      ["Task", html`<${Link} to="runs" terms=${{ task: run.task }}><code>${run.task}</code><//>`],
      run.revision !== null && ["Revision", run.job ? html`<${Link} to=${`jobs/${part(run.job_id)}`} terms=${{ tab: "revisions", b: run.revision }}>${run.revision}<//>` : run.revision],
      ["Cause", run.cause],
      reason && reason !== run.error?.message && ["Reason", reason],
      run.replay_of && ["Replay of", html`<${RunId} id=${run.replay_of} />`],
      run.replays.length > 0 && ["Replays", run.replays.map((id) => html`<${RunId} id=${id} /> `)],
    ],
    [
      ["Scheduled", at(run.scheduled_for)],
      ["Created", run.fired_at && html`${at(run.fired_at)} <span class="mute">${offsetText(secondsBetween(run.scheduled_for, run.fired_at))}</span>`],
      [run.attempts.length > 1 ? "First started" : "Started", at(first)],
      run.finished_at && ["Ended", at(run.finished_at)],
      run.lateness_ms !== null && ["Late by", formatLateness(run)],
    ],
    [
      ["Run ID", html`<span class="run-id"><code title=${`${run.run_id}, also its idempotency key`}>${shortId(run.run_id)}</code> <${CopyButton} text=${run.run_id} what="run id" /></span>`],
      ["Worker", run.worker_id === null ? "–" : html`<${Link} to="runs" terms=${{ worker: run.worker_id }} title="Runs of this worker">${workerName(run.worker_id, workers)}<//>`],
      ["Pool", html`<${Link} to="runs" terms=${{ pool: run.pool }}>${run.pool}<//>`],
      ["Priority", run.priority],
      run.token > 0 && ["Fencing token", run.token],
    ],
  ];
  return html`<div class="context">${columns.map((of, n) => html`<${DescriptionList} key=${n} of=${of} />`)}</div>`;
}

function askCancel(run, reload) {
  confirm({
    title: `Cancel this run of ${run.job ?? run.task}?`,
    verb: "Cancel the run",
    note: run.state === "running" ? "The handler is asked to stop; the run ends when the handler responds." : "The run will not be attempted.",
    samples: [html`<code>${run.run_id}</code>`],
    wantsReason: true,
    act: (reason) => post(`${pathOf(run)}/cancel`, reason ? { reason } : {}).then((response) => (reload(), response)),
    done: (response) => (response.state === "running" ? "Cancel requested" : "Run cancelled"),
  });
}

const same = (a, b) => write(a) === write(b);

/** Replays the occurrence. Only changed arguments are sent, so that unchanged ones keep their exact values. */
function askReplay(run) {
  const isCall = run.task === "http";
  openDialog(`Replay this run of ${run.job ?? run.task}`, function Replay({ close }) {
    const [kwargs, setKwargs] = useState(isCall ? { body: run.kwargs.body } : run.kwargs);
    const [args, setArgs] = useState(run.args);
    const [reason, setReason] = useState("");
    const isObject = kwargs && typeof kwargs === "object" && !Array.isArray(kwargs) && !(kwargs instanceof Error);
    const gone = isObject ? Object.keys(run.kwargs).filter((name) => !(name in kwargs) && !isCall) : [];
    const shape = isObject || kwargs instanceof Error ? [] : [{ detail: "keyword arguments must be an object" }];
    const faults = gone.length ? [{ detail: `${gone.join(", ")} cannot be removed: a replay keeps the arguments that it is not given` }] : shape;
    async function act() {
      const changed = Object.fromEntries(Object.entries(kwargs).filter(([name, value]) => !same(value, run.kwargs[name])));
      const body = { ...(Object.keys(changed).length && { kwargs: changed }), ...(!same(args, run.args) && { args }), ...(reason && { reason }) };
      const made = await post(`${pathOf(run)}/replay`, body);
      notify("Replay started");
      navigate(`runs/${part(made.run_id)}`);
      return made;
    }
    return html`<${DialogForm} close=${close} verb="Replay" act=${act} ready=${isObject && !faults.length && Array.isArray(args)}>${(verdictText) => html`
      <p class="mute">Creates a new run of the same occurrence, with a new id and idempotency key.${" "}
        ${isCall ? "For an HTTP job only the body can be changed." : "Unchanged arguments keep their values."}</p>
      <${JsonField} label="Keyword arguments" value=${kwargs} set=${setKwargs} rows=${8} faults=${[...faults, ...faultsAt(verdictText, "/kwargs")]} />
      ${!isCall && run.args.length > 0 && html`
        <${JsonField} label="Positional arguments" value=${args} set=${setArgs} rows=${4} faults=${faultsAt(verdictText, "/args")} />`}
      <${TextField} label="Reason" hint="stored with the new run" value=${reason} set=${setReason} faults=${faultsAt(verdictText, "/reason")} />`}<//>`;
  });
}

/** Goes to the neighbor among the job's latest runs, or to the newest run before this one. */
async function goToNeighbor(run, by) {
  const strip = await perform(() => get("jobs/strips", { ids: run.job_id, limit: NEIGHBOR_LIMIT }));
  const ids = strip?.items?.[0]?.runs.map((one) => one.run_id) ?? [];
  const at = ids.indexOf(run.run_id);
  let next = at < 0 ? undefined : ids[at - by];
  if (!next && by < 0) next = (await perform(() => get("runs", { job: run.job_id, to: run.scheduled_for, limit: 1 })))?.items[0]?.run_id;
  if (next) navigate(`runs/${part(next)}`);
  else {
    const after = at === 0 ? "This is the newest run" : `The next run is not among the last ${NEIGHBOR_LIMIT}`;
    notify(by > 0 ? after : "There is no earlier run", { tone: "calm" });
  }
}
