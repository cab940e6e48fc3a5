// One run: how it stands and why, its attempts, what went in and came out, what it logged, and what can be done about it.
import { html, useState } from "../lib/html.js";
import { get, may, part, post } from "../lib/api.js";
import { useData } from "../lib/load.js";
import { useKeys } from "../lib/keys.js";
import { write } from "../lib/json.js";
import { go, narrow, query } from "../lib/place.js";
import { now, seconds, span } from "../lib/time.js";
import { JsonField } from "../parts/arguments.js";
import { Ask } from "../parts/ask.js";
import { Attempts, RunLine } from "../parts/attempts.js";
import { Card, CopyAs, Facts, Json, Link, Loading, Tabs, When } from "../parts/basics.js";
import { attempt, confirm, show, tell } from "../parts/dialog.js";
import { Text, faultsAt } from "../parts/field.js";
import { Flow } from "../parts/flow.js";
import { Logs } from "../parts/logs.js";
import { useWhile } from "../parts/operations.js";
import { CANCELLABLE, CopyButton, RETRIABLE, RunId, Took, headline, heldBy, isOver, lateBy, progressOf, shortId } from "../parts/run_words.js";
import { zoneOf } from "../parts/schedule.js";
import { State, look } from "../parts/state.js";
import { Why, whyRun } from "../parts/why.js";

const NEIGHBOURS = 60;
const TABS = { nodes: "Nodes", run: "The run itself" }; // of a workflow run
const LEFT = { view: "", node: "", element: "", state: "", dir: "", follow: "" };
const pathOf = (run) => `runs/${part(run.run_id)}`;

export default function RunPage({ parts }) {
  const found = useData((stop) => get(`runs/${part(parts.id)}`, {}, stop), [parts.id]);
  useWhile(found.data ? !isOver(found.data) : false, found.again, 2000);
  return html`<${Loading} of=${found}>${(run) => html`<${Page} run=${run} again=${found.again} />`}<//>`;
}

/** Its job, for its zone; a deleted one, and a send, have none. */
function useJob(run) {
  return useData((stop) => (run.job ? get(`jobs/${part(run.job_id)}`, {}, stop).catch(() => null) : null), [run.job_id], { still: true }).data ?? null;
}

function Page({ run, again }) {
  const job = useJob(run);
  const zone = job ? zoneOf(job) : undefined;
  const retriable = RETRIABLE.includes(run.state);
  const acts = {
    retry: () => attempt(() => retry(run).then(again), "it is tried again"),
    cancel: () => askCancel(run, again),
    replay: () => askReplay(run),
  };
  useKeys(
    {
      e: ["why is it there?", () => whyRun(run)],
      ...(run.job && { "[": ["the run before, of the same job", () => step(run, -1)], "]": ["the next run of the same job", () => step(run, 1)] }),
      ...(may("operator") && retriable && { r: ["try it again", acts.retry] }),
    },
    "Run",
    [run.run_id, run.state],
  );
  const tab = query.value.get("tab") === "run" ? "run" : "nodes";
  const itself = html`<${Itself} run=${run} zone=${zone} />`;
  return html`<${Crumbs} run=${run} />
    <header class="head"><h1>${run.workflow?.node ?? run.job ?? run.task}</h1><${State} of=${run.state} />
      <span class="mute"><${When} at=${run.scheduled_for} job=${zone} short=${false} /></span><span class="gap"></span>
      ${run.job && html`<button type="button" class="quiet" title="the run before, of the same job ([)" onClick=${() => step(run, -1)}>‹ Before</button>
      <button type="button" class="quiet" title="the next run of the same job (])" onClick=${() => step(run, 1)}>Next ›</button>`}</header>
    <${Verdict} run=${run} zone=${zone} />
    ${!run.has_nodes && html`<${RunLine} run=${run} />`}
    <${Buttons} run=${run} acts=${acts} />
    ${run.has_nodes
      ? html`<${Tabs} tabs=${TABS} chosen=${tab} choose=${(next) => narrow({ ...LEFT, tab: next === "nodes" ? "" : next })} />
        <div role="tabpanel" aria-label=${TABS[tab]}>${tab === "nodes" ? html`<${Flow} run=${run} />` : itself}</div>`
      : itself}`;
}

/** Where it belongs: to a job, to a node of a workflow run, or to nothing. */
function Crumbs({ run }) {
  const own = run.job ? html`<${Link} to=${`jobs/${part(run.job_id)}`}>${run.job}<//>` : html`<code>${run.task}</code>`;
  const node = run.workflow;
  const inside = node && html`<${Link} to=${`jobs/${part(node.job_id)}`}>${node.job ?? "a workflow"}<//> / <${Link} to=${`runs/${part(node.run_id)}`}
    terms=${{ node: node.node }}>workflow run <code>${shortId(node.run_id)}</code><//> / ${node.node}`;
  return html`<nav class="crumbs" aria-label="where you are"><${Link} to="runs">Runs<//> / ${inside ?? own} / <code>${shortId(run.run_id)}</code></nav>`;
}

/** A node that is dead is tried again by its workflow run, and what comes after it with it. */
function retry(run) {
  if (run.state !== "dead" || !run.workflow) return post(`${pathOf(run)}/retry`);
  return post(`runs/${part(run.workflow.run_id)}/nodes/retry`, { nodes: [run.workflow.node] });
}

/** What any run has: its attempts, what went in and came out, and what it logged. */
function Itself({ run, zone }) {
  return html`${run.has_nodes && html`<${RunLine} run=${run} />`}<div class="cards pair">
      ${!isOver(run) && html`<${Card} title="Why it is there"><${Why} path=${`${pathOf(run)}/explain`} /><//>`}
      <${Card} title="Attempts" wide=${isOver(run)}><${Attempts} run=${run} zone=${zone} /><//>
      <${Card} title="Arguments" aside=${html`<${CopyButton} text=${write({ args: run.args, kwargs: run.kwargs }, 2)} what="the arguments" />`}>
        <${Payload} run=${run} /><//>
      <${Card} title=${run.error && isOver(run) ? "Error" : "Result"} aside=${run.result !== null && html`<${CopyButton} text=${write(run.result, 2)}
        what="the result" />`}>
        <${Outcome} run=${run} /><//>
      <${Card} title="Context" wide=${true}><${Context} run=${run} zone=${zone} /><//>
    </div>
    <section class="card wide" id="logs" aria-label="log lines"><header><h2>Log lines</h2></header><${Logs} run=${run} zone=${zone} /></section>`;
}

/** The first line: what became of it, or how far it is. */
function Verdict({ run, zone }) {
  const tone = look(run.state)[1];
  return html`<div class="verdict run-verdict tone-${tone === "mute" ? "calm" : tone}">${told(run, zone)}${run.state === "running" && html`<${Bar}
    run=${run} />`}</div>`;
}

const WORDS = { queued: "Waits for a worker", blocked: "Held back", waiting: "Its time has not come", cancelled: "Cancelled", skipped: "Skipped" };

function told(run, zone) {
  const tries = run.attempt > 1 ? ` at attempt ${run.attempt}` : "";
  const said = headline(run);
  if (run.state === "succeeded") return html`<strong>Succeeded</strong>${tries} in <${Took} run=${run} />.`;
  const after = `after ${run.attempt === 1 ? "1 attempt" : `${run.attempt} attempts`}`;
  if (run.state === "running") {
    const far = [run.cancel_requested && ", and asked to stop", progressOf(run) && `: ${progressOf(run)}`].filter(Boolean).join("");
    return html`<strong>Running</strong> for <${Took} run=${run} />${tries}${far}`;
  }
  if (run.state === "retrying") return html`<strong>Next attempt <${When} at=${run.available_at} job=${zone} /></strong> ${after}: ${said}`;
  if (run.state === "dead") return html`<strong>Dead ${after}</strong>${said && `: ${said}`}`;
  const waits = WORDS[run.state] ?? run.state;
  const more = run.state === "blocked" && run.blocked.length ? heldBy(run) : said;
  return html`<strong>${waits}</strong>${!isOver(run) && html` for <${Since} run=${run} />`}${more && `: ${more}`}`;
}

function Since({ run }) {
  const from = run.available_at ?? run.fired_at ?? run.scheduled_for;
  return span(Math.max(0, (now.value - new Date(from)) / 1000));
}

function Bar({ run }) {
  const { done, total } = run.progress ?? {};
  if (!total) return null;
  return html`<progress class="progress" max=${Number(total)} value=${Number(done)} aria-label=${progressOf(run)}></progress>`;
}

function Buttons({ run, acts }) {
  return html`<div class="tools" role="group" aria-label="what can be done">
    ${may("operator") && RETRIABLE.includes(run.state) && !run.has_nodes && html`<button type="button" class="main" onClick=${acts.retry}>
      ${run.state === "dead" ? "Retry" : "Try now"}</button>`}
    ${may("operator") && isOver(run) && !run.workflow && html`<button type="button" onClick=${acts.replay}>Edit and replay …</button>`}
    ${may("operator") && CANCELLABLE.includes(run.state) && html`<button type="button" class="danger" disabled=${run.cancel_requested} onClick=${acts.cancel}>
      ${run.cancel_requested ? "Asked to stop" : "Cancel …"}</button>`}
    <button type="button" onClick=${() => whyRun(run)}>Why?</button>
    <span class="gap"></span><span class="mute">id</span><${CopyButton} text=${run.run_id} what="the run's id" />
    <${CopyAs} cli=${`bellringer runs get ${run.run_id}`} path=${pathOf(run)} />
  </div>`;
}

function Payload({ run }) {
  const none = !run.args.length && !Object.keys(run.kwargs).length;
  if (none) return html`<p class="mute">None.</p>`;
  return html`${run.args.length > 0 && html`<p class="mute">By position</p><${Json} value=${run.args} label="positional arguments" />`}
    ${Object.keys(run.kwargs).length > 0 && html`${run.args.length > 0 && html`<p class="mute">By name</p>`}<${Json} value=${run.kwargs}
      label="keyword arguments" />`}`;
}

function Outcome({ run }) {
  if (!isOver(run)) return html`<p class="mute">It has not ended.</p>`;
  if (run.state === "succeeded") return html`<${Json} value=${run.result} label="what it gave back" />`;
  const { traceback: _traceback, ...error } = run.error ?? {};
  return run.error ? html`<${Json} value=${error} label="its error" />` : html`<p class="mute">${run.reason || "None."}</p>`;
}

/** Timers are wound ahead of their time, so that a run starts on it. */
const beside = (length) => `${span(length)} ${length < 0 ? "ahead of" : "after"} its time`;

function Context({ run, zone }) {
  const at = (instant) => instant && html`<${When} at=${instant} job=${zone} short=${false} />`;
  return html`<${Facts} of=${[
    ["Idempotency key", html`<code>${run.run_id}</code> <${CopyButton} text=${run.run_id} what="the key" />`],
    ["Scheduled for", html`${at(run.scheduled_for)}${run.slot ? ` (slot ${run.slot})` : ""}`],
    ["Fired", run.fired_at && html`${at(run.fired_at)} <span class="mute">${beside(seconds(run.scheduled_for, run.fired_at))}</span>`],
    ["Started", at(run.started_at)],
    ["Ended", at(run.finished_at)],
    ["Late by", lateBy(run)],
    ["Cause", run.cause],
    ["Task", html`<${Link} to="runs" terms=${{ task: run.task }}><code>${run.task}</code><//>`],
    ["Job", run.job ? html`<${Link} to=${`jobs/${part(run.job_id)}`}>${run.job}<//>` : run.workflow ? html`node <${Link} to=${`runs/${part(run.workflow.run_id)}`}
      terms=${{ node: run.workflow.node }}>${run.workflow.node}<//> of ${run.workflow.job ?? "a workflow"}` : "none: it was sent"],
    ["Revision", run.job && run.revision !== null ? html`<${Link} to=${`jobs/${part(run.job_id)}`} terms=${{ tab: "revisions", b: run.revision }}>
      ${run.revision}<//>` : run.revision],
    ["Pool", html`<${Link} to="runs" terms=${{ pool: run.pool }}>${run.pool}<//>`],
    ["Priority", run.priority],
    ["Worker", run.worker_id === null ? "–" : html`<${Link} to="runs" terms=${{ worker: run.worker_id }} title="its runs">${run.worker_id}<//>`],
    ["Fencing token", run.token],
    run.replay_of && ["Repeats", html`<${RunId} id=${run.replay_of} />`],
    run.replays.length > 0 && ["Repeated by", run.replays.map((id) => html`<${RunId} id=${id} /> `)],
  ]} />`;
}

function askCancel(run, again) {
  confirm({
    title: `Cancel this run of ${run.job ?? run.task}?`,
    verb: "Cancel the run",
    note: run.state === "running" ? "It is asked to stop, and ends when its handler hears it." : "It will not be tried.",
    samples: [html`<code>${run.run_id}</code>`],
    wantsReason: true,
    act: (reason) => post(`${pathOf(run)}/cancel`, reason ? { reason } : {}).then((answer) => (again(), answer)),
    done: (answer) => (answer.state === "running" ? "the run is asked to stop" : "the run is cancelled"),
  });
}

const same = (a, b) => write(a) === write(b);

/** The same occurrence once more. Only what was changed is sent, so the rest stays as exact as it was. */
function askReplay(run) {
  const isCall = run.task === "http";
  show(`Replay this run of ${run.job ?? run.task}`, function Replay({ close }) {
    const [kwargs, set] = useState(isCall ? { body: run.kwargs.body } : run.kwargs);
    const [args, position] = useState(run.args);
    const [reason, because] = useState("");
    const isObject = kwargs && typeof kwargs === "object" && !Array.isArray(kwargs) && !(kwargs instanceof Error);
    const gone = isObject ? Object.keys(run.kwargs).filter((name) => !(name in kwargs) && !isCall) : [];
    const shape = isObject || kwargs instanceof Error ? [] : [{ detail: "keyword arguments are one object" }];
    const faults = gone.length ? [{ detail: `${gone.join(", ")} cannot be taken away: what a replay is not given stays as it was` }] : shape;
    async function act() {
      const changed = Object.fromEntries(Object.entries(kwargs).filter(([name, value]) => !same(value, run.kwargs[name])));
      const body = { ...(Object.keys(changed).length && { kwargs: changed }), ...(!same(args, run.args) && { args }), ...(reason && { reason }) };
      const made = await post(`${pathOf(run)}/replay`, body);
      tell("it runs once more");
      go(`runs/${part(made.run_id)}`);
      return made;
    }
    return html`<${Ask} close=${close} verb="Replay" act=${act} ready=${isObject && !faults.length && Array.isArray(args)}>${(told) => html`
      <p class="mute">A new run of the same occurrence, with an id and an idempotency key of its own.${" "}
        ${isCall ? "Of a call only the body can be another." : "What is not changed stays as it was."}</p>
      <${JsonField} label="Keyword arguments" value=${kwargs} set=${set} rows=${8} faults=${[...faults, ...faultsAt(told, "/kwargs")]} />
      ${!isCall && run.args.length > 0 && html`
        <${JsonField} label="Positional arguments" value=${args} set=${position} rows=${4} faults=${faultsAt(told, "/args")} />`}
      <${Text} label="Reason" hint="the new run keeps it" value=${reason} set=${because} faults=${faultsAt(told, "/reason")} />`}<//>`;
  });
}

/** To the neighbour among the job's last runs; farther back, the newest run before this one's time. */
async function step(run, by) {
  const strip = await attempt(() => get("jobs/strips", { ids: run.job_id, limit: NEIGHBOURS }));
  const ids = strip?.items?.[0]?.runs.map((one) => one.run_id) ?? [];
  const at = ids.indexOf(run.run_id);
  let next = at < 0 ? undefined : ids[at - by];
  if (!next && by < 0) next = (await attempt(() => get("runs", { job: run.job_id, to: run.scheduled_for, limit: 1 })))?.items[0]?.run_id;
  if (next) go(`runs/${part(next)}`);
  else {
    const after = at === 0 ? "this is its newest run" : `the next one is not among its last ${NEIGHBOURS}`;
    tell(by > 0 ? after : "there is none before it", { tone: "calm" });
  }
}
