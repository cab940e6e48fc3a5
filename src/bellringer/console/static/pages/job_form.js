// A job is made, changed, or made after another one. What it means is asked of the server while it is typed; a change is shown before it is saved.
import { html, useEffect, useId, useMemo, useState } from "../lib/html.js";
import { ask, get, may, part } from "../lib/api.js";
import { useData } from "../lib/load.js";
import { write } from "../lib/json.js";
import { go, query } from "../lib/place.js";
import { Card, CopyAs, Link, Loading, Trouble, When } from "../parts/basics.js";
import { show, tell } from "../parts/dialog.js";
import { Arguments, JsonField, useTask } from "../parts/arguments.js";
import { Changes } from "../parts/diff.js";
import { Moment, Select, Text, Tick, faultsAt } from "../parts/field.js";
import { EMPTY, createOf, documentOf, draftOf, mergePatch, placed, scheduleOf, unsayable } from "../parts/job_draft.js";
import { Preview } from "../parts/schedule.js";

const KINDS = {
  cron: "Cron: times of the day",
  every: "Every: a fixed rhythm",
  at: "At: once",
  delay: "Delay: after each end",
  rrule: "RRULE: a calendar rule",
  manual: "Only by hand",
  several: "Several schedules",
};
const MISFIRE = { fire_once: "run the latest of them, once", skip: "run none of them", fire_all: "catch up all of them, behind live work" };
const OVERLAP = {
  skip: "skip the new one",
  allow: "run beside it",
  queue: "wait for its turn",
  collapse: "one waits and stands for the others",
  replace: "cancel the old one",
};
const DELIVERY = {
  "": "as the task says, else at least once",
  at_least_once: "at least once: try again after a crash",
  at_most_once: "at most once: never twice",
};
const GAP = { "": "as usual for it", next: "fire right after the gap", skip: "leave it out" };
const FOLD = { "": "as usual for it", first: "the first time", second: "the second time", both: "both times" };
const SHIFT = { skip: "leave it out", next: "move to the next working day", previous: "move to the working day before" };

const CRON_HINT = "minute hour day month weekday; H stands for a value chosen by the job's name";
const SAMPLES = 20;

export default function JobForm({ parts }) {
  const from = parts.id ?? query.value.get("from");
  const found = useData(async (stop) => (from ? ask("GET", `jobs/${part(from)}`, { signal: stop }) : { data: null, etag: null }), [from], { still: true });
  return html`<${Loading} of=${found}>${({ data, etag }) => html`<${Form} key=${etag ?? "new"} job=${data} etag=${etag} edits=${Boolean(parts.id)}
    again=${found.again} />`}<//>`;
}

function begin(job, edits) {
  if (!job) return EMPTY;
  const draft = draftOf(job);
  return edits ? draft : { ...draft, name: `${job.name}-copy`, seed: null };
}

function Form({ job, etag, edits, again }) {
  const first = useMemo(() => begin(job, edits), []);
  const [draft, put] = useState(first);
  const [wrong, mark] = useState({});
  const [previewed, hear] = useState([]);
  const [error, fail] = useState(null);
  const [busy, work] = useState(false);
  const tasks = useData((stop) => get("tasks", { limit: 200 }, stop), [], { still: true }).data?.items ?? [];
  const known = tasks.find((one) => draft.what === "task" && one.name === draft.task.trim());
  const patch = edits ? mergePatch(documentOf(first), documentOf(draft)) : null;
  const lost = edits ? unsayable(documentOf(first), documentOf(draft)).map((name) => ({ pointer: `/${name}`, ...NULL })) : [];
  const changed = edits ? Object.keys(patch) : [];
  const dirty = edits ? changed.length > 0 : draft !== first;
  useLeaving(dirty && !busy);
  useEffect(() => {
    const marked = error ? [...document.querySelectorAll('.job-form [aria-invalid="true"]')] : [];
    for (const one of marked) one.closest("details")?.setAttribute("open", ""); // what is wrong must not be folded away
    marked[0]?.focus();
  }, [error]);
  const faults = [...placed(error?.errors ?? []), ...previewed, ...lost];
  const form = {
    draft,
    tasks,
    known,
    wish: (name, usual) => (edits ? usual : wished(known?.defaults ?? {}, name) ?? usual),
    set: (name) => (value) => put((old) => ({ ...old, [name]: value })),
    inner: (group, name) => (value) => put((old) => ({ ...old, [group]: { ...old[group], [name]: value } })),
    at: (pointer) => faultsAt(faults, pointer),
    refuse: (name) => (value) => mark((old) => ({ ...old, [name]: value })),
  };
  const ready = !busy && !Object.values(wrong).some(Boolean) && lost.length === 0 && (!edits || dirty);
  async function submit(event) {
    event.preventDefault();
    if (edits) return void review({ job, etag, patch, fail, again });
    work(true);
    fail(null);
    try {
      const { data } = await ask("POST", "jobs", { body: createOf(draft) });
      tell(`${data.name} is made`);
      go(`jobs/${part(data.job_id)}`);
    } catch (problem) {
      fail(problem);
      work(false);
    }
  }
  const title = edits ? `Edit ${job.name}` : job ? `A copy of ${job.name}` : "Create a job";
  return html`<nav class="crumbs" aria-label="where you are"><${Link} to="jobs">Jobs<//> / ${job && html`<${Link} to=${`jobs/${part(job.job_id)}`}>
    ${job.name}<//> / `}${edits ? "edit" : "new"}</nav>
    <header class="head"><h1>${title}</h1>${edits && html`<span class="mute">revision ${job.revision}</span>`}<span class="gap"></span>
      ${edits ? html`<${CopyAs} method="PATCH" path=${`jobs/${part(job.job_id)}`} body=${patch} />` : html`<${CopyAs} method="POST" path="jobs"
        body=${Object.values(wrong).some(Boolean) ? {} : createOf(draft)} />`}</header>
    ${!may("editor") && html`<p class="tone-warn">You may look, and not save: that needs the role editor.</p>`}
    <form class="job-form" onSubmit=${submit} novalidate>
      <div class="sections"><${What} form=${form} /><${Timing} form=${form} /><${Mishaps} form=${form} /><${Where} form=${form} /><${Labels} form=${form} />
        </div>
      <aside class="beside"><${Card} title="What it means"><${Meant} draft=${draft} hear=${hear} /><//>
        ${edits && html`<${Card} title="What you have changed">${dirty ? html`<ul>${changed.map((name) => html`<li key=${name}>
          ${name.replaceAll("_", " ")}</li>`)}</ul>` : html`<p class="mute">Nothing yet.</p>`}<//>`}
        <${Trouble} error=${error} again=${error?.status === 412 ? again : undefined} />
        <div class="actions"><${Link} class="button" to=${job ? `jobs/${part(job.job_id)}` : "jobs"}>Cancel<//>
          <button type="submit" class="main" disabled=${!ready || !may("editor")}>${edits ? "Review the changes …" : "Create the job"}</button></div>
      </aside>
    </form>`;
}

/** What the task's code wants where a job does not say otherwise: "retry.attempts" is a part of a part. */
function wished(defaults, name) {
  const value = name.split(".").reduce((part, one) => part?.[one], defaults);
  return value === undefined || value === null ? undefined : `${Array.isArray(value) ? value.join(", ") : value}, as its task says`;
}

/** Who leaves with something typed is asked by the browser. */
function useLeaving(dirty) {
  useEffect(() => {
    const hold = (event) => dirty && event.preventDefault();
    addEventListener("beforeunload", hold);
    return () => removeEventListener("beforeunload", hold);
  }, [dirty]);
}

const NULL = { detail: "a change cannot set null here: there it means to leave out", hint: "leave it out, or PUT the whole job" };

// What runs

function What({ form }) {
  const { draft, set, at, refuse, tasks, known } = form;
  const id = useId();
  const task = useTask(known?.name ?? "");
  return html`<${Card} title="What runs" wide=${true}>
    <div class="fields">
      <${Text} label="Name" value=${draft.name} set=${set("name")} faults=${at("/name")} hint="unique among your jobs" required />
      ${draft.what !== "workflow" && html`<${Select} label="It" of=${{ task: "runs a task", http: "calls a URL" }} value=${draft.what} set=${set("what")} />`}
      ${draft.what === "task" && html`<${Text} label="Task" mono=${true} list=${id} value=${draft.task} set=${set("task")} faults=${at("/task")}
        hint="as workers know it; it may be named before one does" required />`}
    </div>
    <datalist id=${id}>${tasks.map((one) => html`<option value=${one.name}>${one.doc.split("\n")[0]}</option>`)}</datalist>
    ${draft.what === "http"
      ? html`<${JsonField} label="The call" value=${draft.http} set=${json(form, "http")} faults=${at("/http")}
        hint="url, method, headers, body, timeout, expect, secret" />`
      : draft.what === "workflow"
      ? html`<${JsonField} label="Params" value=${draft.kwargs} set=${json(form, "kwargs")} faults=${at("/kwargs")}
        hint="it is a workflow: its nodes are changed where they are declared, in code or by the API" />`
      : !draft.task.trim()
        ? html`<p class="mute">Name a task, and its arguments appear here.</p>`
        : html`<${Arguments} key=${task.data?.name ?? "unknown"} task=${task.data ?? null} value=${draft.kwargs} set=${set("kwargs")}
          refuse=${(names) => refuse("kwargs")(names.length > 0)} faults=${(name) => at(name ? `/kwargs/${name}` : "/kwargs")} />
          ${draft.args.length > 0 && html`<${JsonField} label="Positional arguments" rows=${3} value=${draft.args} set=${json(form, "args")}
            faults=${at("/args")} />`}`}
  <//>`;
}

/** A field of JSON: while it is none, the form cannot be sent. */
const json = (form, name) => (value) => {
  form.refuse(name)(value instanceof Error);
  if (!(value instanceof Error)) form.set(name)(value);
};

// When

function Timing({ form }) {
  const { draft, set, inner, at } = form;
  const zones = useId();
  const s = draft.schedule;
  const text = (name, label, hint, more = {}) => html`<${Text} label=${label} hint=${hint} value=${s[name]} set=${inner("schedule", name)}
    faults=${at(`/schedule/${name}`)} ...${more} />`;
  const timetable = draft.kind === "cron" || draft.kind === "rrule";
  return html`<${Card} title="When" wide=${true}>
    <div class="fields">
      <${Select} label="Schedule" of=${KINDS} value=${draft.kind} set=${set("kind")} faults=${at("/schedule").filter((one) => one.pointer === "/schedule")} />
      ${draft.kind === "cron" && text("cron", "Cron expression", CRON_HINT, { mono: true, placeholder: "30 2 * * *" })}
      ${draft.kind === "rrule" && html`${text("rrule", "Rule", "as RFC 5545 has it", { mono: true, placeholder: "FREQ=MONTHLY;BYDAY=-1FR" })}
        ${text("start", "Start", "the local time of its first day", { type: "datetime-local" })}`}
      ${draft.kind === "every" && html`${text("every", "Every", "such as 30s, 15m or 1h30m", { placeholder: "15m" })}
        ${text("offset", "Offset", "after the full rhythm; may be left out")}`}
      ${draft.kind === "delay" && text("delay", "Delay", "from the end of one run to the next", { placeholder: "10m" })}
      ${draft.kind === "at" && html`<${Moment} label="At" value=${s.at} set=${inner("schedule", "at")} faults=${at("/schedule/at")} />`}
      ${timetable && text("tz", "Zone", "of its times, such as Europe/Paris", { list: zones })}
    </div>
    ${draft.kind === "several" && html`<${JsonField} label="Schedules" value=${draft.several} set=${json(form, "several")} faults=${at("/schedules")}
      hint="a list of schedules as the API takes them" />`}
    <datalist id=${zones}>${useMemo(() => ["UTC", ...Intl.supportedValuesOf("timeZone")].map((zone) => html`<option value=${zone}></option>`), [])}</datalist>
    ${timetable && html`<${Clock} form=${form} />`}
    <details><summary>From when, until when, spread</summary><div class="fields">
      <${Moment} label="Not before" value=${draft.starts_at} set=${set("starts_at")} faults=${at("/starts_at")} />
      <${Moment} label="Not after" value=${draft.ends_at} set=${set("ends_at")} faults=${at("/ends_at")} />
      <${Text} label="Jitter" value=${draft.jitter} set=${set("jitter")} faults=${at("/jitter")}
        hint="runs start by a fixed part of it later, another for each job" placeholder="10m" />
      <${Text} label="Late after" value=${draft.late_after} set=${set("late_after")} faults=${at("/late_after")}
        hint="an event tells when it has not started by then" placeholder="15m" />
    </div></details><//>`;
}

function Clock({ form }) {
  const { draft, inner, at } = form;
  const s = draft.schedule;
  const calendars = useData((stop) => get("calendars", { limit: 200 }, stop), [], { still: true }).data?.items ?? [];
  const known = Object.fromEntries([...new Set([...calendars.map((one) => one.name), s.calendar].filter(Boolean))].map((name) => [name, name]));
  const select = (name, label, of, hint) => html`<${Select} label=${label} of=${of} hint=${hint} value=${s[name]} set=${inner("schedule", name)}
    faults=${at(`/schedule/${name}`)} />`;
  return html`<details open=${Boolean(s.calendar || s.gap || s.fold || s.seconds)}><summary>Days off, and changes of the clock</summary><div class="fields">
    ${select("calendar", "Calendar", { "": "none", ...known }, "whose days off it heeds")}
    ${s.calendar && select("shift", "On a day off", SHIFT)}
    ${select("gap", "A time that the clock leaves out", GAP)}${select("fold", "A time that comes twice", FOLD)}
    ${draft.kind === "cron" && html`<${Tick} label="six fields, with seconds" value=${s.seconds} set=${inner("schedule", "seconds")} />`}
  </div></details>`;
}

// When something goes wrong

function Mishaps({ form }) {
  const { draft, set, inner, at } = form;
  const retry = (name, label, hint, more) => html`<${Text} label=${label} hint=${hint} value=${draft.retry[name]} set=${inner("retry", name)}
    faults=${at(`/retry/${name}`)} ...${more} />`;
  const tries = at("/retry").filter((one) => one.pointer === "/retry" || one.pointer === "/retry/attempts");
  return html`<${Card} title="When something goes wrong" wide=${true}>
    <div class="fields">
      <${Select} label="If it was missed" hint="nobody fired it in time" of=${MISFIRE} value=${draft.misfire} set=${set("misfire")}
        faults=${at("/misfire")} />
      <${Select} label="If it overlaps" hint="the one before is unfinished" of=${OVERLAP} value=${draft.overlap} set=${set("overlap")}
        faults=${at("/overlap")} />
      ${retry("attempts", "Attempts", "how often it is tried in all", { mode: "numeric", placeholder: form.wish("retry.attempts", "3"), faults: tries })}
      <${Text} label="Timeout" value=${draft.timeout} set=${set("timeout")} faults=${at("/timeout")} hint="of one attempt"
        placeholder=${form.wish("timeout", "10m")} />
    </div>
    ${draft.misfire === "fire_all" && html`<div class="fields">
      <${Text} label="Catch up at most" mode="numeric" value=${draft.max_catchup} set=${set("max_catchup")} faults=${at("/max_catchup")} placeholder="100" />
      <${Text} label="None older than" value=${draft.catchup_window} set=${set("catchup_window")} faults=${at("/catchup_window")} placeholder="7d" />
      <${Text} label="A minute at most" mode="numeric" value=${draft.catchup_rate} set=${set("catchup_rate")} faults=${at("/catchup_rate")} /></div>`}
    <details><summary>Between attempts, heartbeat, delivery</summary><div class="fields">
      ${retry("base", "First wait", "doubles with each attempt", { placeholder: form.wish("retry.base", "5s") })}
      ${retry("cap", "Longest wait", "", { placeholder: form.wish("retry.cap", "15m") })}
      ${retry("delays", "Or these waits", "with commas: 1s, 1m, 1h", { placeholder: form.wish("retry.delays") })}
      ${retry("never_on", "Never try again on", "names of exceptions, with commas")}
      <${Text} label="Heartbeat" value=${draft.heartbeat} set=${set("heartbeat")} faults=${at("/heartbeat")}
        hint="a handler that is silent for longer is lost" placeholder=${form.wish("heartbeat")} />
      <${Select} label="Delivery" of=${DELIVERY} value=${draft.delivery} set=${set("delivery")} faults=${at("/delivery")} />
    </div></details><//>`;
}

// Where, and how many at once

function Where({ form }) {
  const { draft, set, at } = form;
  const pools = useData((stop) => get("pools", { limit: 200 }, stop), [], { still: true }).data?.items ?? [];
  const known = Object.fromEntries([...new Set([...pools.map((one) => one.name), draft.pool].filter(Boolean))].map((name) => [name, name]));
  return html`<${Card} title="Where, and how many at once" wide=${true}><div class="fields">
    <${Select} label="Pool" of=${{ "": "by how long it takes", ...known }} value=${draft.pool} set=${set("pool")} faults=${at("/pool")} />
    <${Text} label="Expected to take" value=${draft.expected_duration} set=${set("expected_duration")} faults=${at("/expected_duration")}
      placeholder=${form.wish("expected_duration", "30s")} hint="more than a minute goes to the pool long" />
    <${Text} label="Priority" mode="numeric" value=${draft.priority} set=${set("priority")} faults=${at("/priority")} hint="higher goes first"
      placeholder=${form.wish("priority", "5")} />
    <${Text} label="Its own runs at once" mode="numeric" value=${draft.max_concurrency} set=${set("max_concurrency")} faults=${at("/max_concurrency")} />
    <${Text} label="Shared limit" value=${draft.concurrency_key} set=${set("concurrency_key")} faults=${at("/concurrency_key")}
      hint="a key that several jobs name" />
    ${draft.concurrency_key && html`<${Text} label="Of these at once" mode="numeric" value=${draft.concurrency_limit} set=${set("concurrency_limit")}
      faults=${at("/concurrency_limit")} placeholder="1" />`}
  </div><//>`;
}

function Labels({ form }) {
  const { draft, set, at } = form;
  return html`<${Card} title="Labels and state" wide=${true}><div class="fields">
    <${Text} label="Tags" value=${draft.tags} set=${set("tags")} faults=${at("/tags")} hint="with commas" />
    <${Text} label="Region" value=${draft.region} set=${set("region")} faults=${at("/region")} hint="whose nodes are to fire it; may be left out" />
    <${Tick} label="Enabled" value=${draft.enabled} set=${set("enabled")} hint="a disabled job is kept, and never fires" />
  </div><//>`;
}

// What it means, and what a change does

function Meant({ draft, hear }) {
  useEffect(() => {
    if (draft.kind === "manual" || draft.kind === "several") hear([]);
  }, [draft.kind]);
  if (draft.kind === "manual") return html`<p>Only by hand: it has no schedule, and runs when somebody runs it.</p>`;
  if (draft.kind === "several") return draft.several.map?.((one) => html`<${Preview} key=${write(one)} schedule=${one} job=${draft.name.trim()} />`) ?? null;
  return html`<${Preview} schedule=${scheduleOf(draft)} job=${draft.name.trim() || undefined} onFaults=${hear} />`;
}

/** A change is asked of the server as a dry run first: what differs, and which fires come and go. */
function review({ job, etag, patch, fail, again }) {
  show(`Save the changes of ${job.name}?`, function Review({ close }) {
    const path = `jobs/${part(job.job_id)}`;
    const found = useData((stop) => ask("PATCH", path, { terms: { dry_run: "true" }, body: patch, etag, signal: stop }), [], { still: true });
    const [busy, work] = useState(false);
    const [error, refuse] = useState(null);
    const problem = error ?? found.error;
    useEffect(() => {
      if (problem?.status !== 422) return;
      fail(problem); // it belongs to the fields
      close();
    }, [problem]);
    async function save() {
      work(true);
      try {
        await ask("PATCH", path, { body: patch, etag });
        close();
        tell(`${job.name} is changed`);
        go(path);
      } catch (one) {
        refuse(one);
        work(false);
      }
    }
    const reload = () => {
      close();
      again();
    };
    return html`${!found.data && !found.error && html`<p class="loading" aria-busy="true">Asking the server what that would do …</p>`}
      <${Trouble} error=${problem} />
      ${problem?.status === 412 && html`<p>Somebody has changed it meanwhile. What you have typed is lost when you read it again.</p>`}
      ${found.data && html`<${Dry} of=${found.data.data} />`}
      <div class="actions"><button type="button" autofocus onClick=${close}>Go on editing</button>
        ${problem?.status === 412 ? html`<button type="button" class="main" onClick=${reload}>Read it again</button>` : html`<button type="button"
          class="main" disabled=${busy || !found.data} onClick=${save}>Save the changes</button>`}</div>`;
  });
}

function Dry({ of }) {
  const { fires } = of;
  const same = !fires.removed.length && !fires.added.length;
  const some = (list, count, sign, word) => list.length > 0 && html`<details><summary>${count.toLocaleString("en")} would ${word}</summary>
    <ul class="samples">${list.slice(0, SAMPLES).map((at) => html`<li key=${at}>${sign} <${When} at=${at} short=${false} />
      </li>`)}${count > SAMPLES && html`<li class="mute">and ${(count - SAMPLES).toLocaleString("en")} more</li>`}</ul></details>`;
  return html`<${Changes} of=${of.changes} />
    <p class="verdict ${same ? "tone-calm" : "tone-warn"}">${same
      ? html`It fires as before: ${fires.before.toLocaleString("en")} times until <${When} at=${fires.to} short=${false} />.`
      : html`It would fire differently: ${fires.before.toLocaleString("en")} times become ${fires.after.toLocaleString("en")} until <${When} at=${fires.to}
        short=${false} />.`}
      ${of.next_before !== of.next_after && html` Next: <${When} at=${of.next_before} short=${false} /> → <${When} at=${of.next_after}
        short=${false} />.`}</p>
    ${some(fires.removed, fires.before - fires.kept, "−", "go")}${some(fires.added, fires.after - fires.kept, "+", "come")}
    ${of.warnings.map((one) => html`<p class="tone-warn"><span aria-hidden="true">⚠</span> ${one.text}</p>`)}`;
}
