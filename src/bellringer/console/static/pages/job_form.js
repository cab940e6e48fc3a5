// Form to create, edit or duplicate a job. The server previews the schedule while the user types, and a dry run of a change before it is saved.
import { html, useEffect, useId, useMemo, useRef, useState } from "../lib/html.js";
import { request, get, may, part } from "../lib/api.js";
import { useData } from "../lib/page_data.js";
import { write } from "../lib/json.js";
import { navigate, query } from "../lib/router.js";
import { Card, CopyAs, Link, Loading, ErrorMessage, Time } from "../parts/elements.js";
import { openDialog, notify } from "../parts/dialog.js";
import { Arguments, JsonField, useTask } from "../parts/arguments.js";
import { Changes } from "../parts/diff.js";
import { DateTimeField, FormError, SelectField, TextField, Checkbox, faultsAt, markShown, useFocusOnFault } from "../parts/field.js";
import { EMPTY, createRequest, documentOf, draftOf, draftOfSchedule, mergePatch, mapPointers, scheduleOf, inexpressible } from "../parts/job_draft.js";
import { Preview } from "../parts/schedule.js";
import { CronPresets, ScheduleInEnglish } from "../parts/schedule_input.js";
import { useUnsavedWarning } from "../parts/unsaved_changes.js";

const KINDS = {
  cron: "Cron: fixed times",
  every: "Every: fixed interval",
  at: "At: once",
  delay: "Delay: after the previous run ends",
  rrule: "RRULE: recurrence rule",
  manual: "None: run manually",
  several: "Several schedules",
};
const AFTER_COMPLETION = { keep: "keep the job", delete: "delete the job" };
const MISFIRE = { fire_once: "run only the latest", skip: "run none", fire_all: "run all, with low priority" };
const OVERLAP = {
  skip: "skip the new run",
  allow: "run concurrently",
  queue: "queue the new run",
  collapse: "queue one run, skip the others",
  replace: "cancel the earlier run",
};
const DELIVERY = {
  "": "default of the task, otherwise at least once",
  at_least_once: "at least once: retry after a crash",
  at_most_once: "at most once: never retry after a crash",
};
const GAP = { "": "default of the schedule", next: "run right after the change", skip: "skip" };
const FOLD = { "": "default of the schedule", first: "run the first time", second: "run the second time", both: "run both times" };
const DIALECT = { "": "crontab: Sunday is 0", quartz: "Quartz: seconds first, Sunday is 1", aws: "AWS EventBridge: year last, Sunday is 1" };
const DAY_MATCH = { "": "as crontab", either: "either field matches", both: "both fields match" };
const SHIFT = { skip: "skip", next: "move to the next working day", previous: "move to the previous working day" };

const CRON_HINT = "minute hour day month weekday; H picks a fixed value from the job's name";
const SAMPLES = 20;

export default function JobForm({ parts }) {
  const from = parts.id ?? query.value.get("from");
  const found = useData(async (stop) => (from ? request("GET", `jobs/${part(from)}`, { signal: stop }) : { data: null, etag: null }), [from], { once: true });
  return html`<${Loading} of=${found}>${({ data, etag }) => html`<${Form} key=${etag ?? "new"} job=${data} etag=${etag} edits=${Boolean(parts.id)}
    reload=${found.reload} />`}<//>`;
}

function initialDraft(job, edits) {
  if (!job) return EMPTY;
  const draft = draftOf(job);
  return edits ? draft : { ...draft, name: `${job.name}-copy`, seed: null };
}

function Form({ job, etag, edits, reload }) {
  const first = useMemo(() => initialDraft(job, edits), []);
  const [draft, setDraft] = useState(first);
  const [wrong, setWrong] = useState({});
  const [previewed, setPreviewed] = useState([]);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const tasks = useData((stop) => get("tasks", { limit: 200 }, stop), [], { once: true }).data?.items ?? [];
  const known = tasks.find((one) => draft.what === "task" && one.name === draft.task.trim());
  const patch = edits ? mergePatch(documentOf(first), documentOf(draft)) : null;
  const inexpressibleFields = edits ? inexpressible(documentOf(first), documentOf(draft)).map((name) => ({ pointer: `/${name}`, ...NULL })) : [];
  const changed = edits ? Object.keys(patch) : [];
  const isInvalid = Object.values(wrong).some(Boolean);
  const dirty = edits ? changed.length > 0 : draft !== first && write(documentOf(draft)) !== write(documentOf(first));
  const fields = useRef(null);
  useUnsavedWarning((dirty || isInvalid) && !busy);
  useFocusOnFault(fields, error);
  const refused = mapPointers(error?.errors ?? []);
  const faults = [...withoutRepeats([...refused, ...previewed]), ...inexpressibleFields];
  const form = {
    draft,
    tasks,
    known,
    wish: (name, usual) => (edits ? usual : taskDefault(known?.defaults ?? {}, name) ?? usual),
    change: (more) => setDraft((old) => ({ ...old, ...more })),
    set: (name) => (value) => setDraft((old) => ({ ...old, [name]: value })),
    inner: (group, name) => (value) => setDraft((old) => ({ ...old, [group]: { ...old[group], [name]: value } })),
    at: (pointer) => faultsAt(faults, pointer),
    refuse: (name) => (value) => setWrong((old) => ({ ...old, [name]: value })),
  };
  const ready = !busy && !isInvalid && inexpressibleFields.length === 0 && (!edits || dirty);
  async function submit(event) {
    event.preventDefault();
    if (edits) return void review({ job, etag, patch, fail: setError, reload });
    setBusy(true);
    setError(null);
    try {
      const { data } = await request("POST", "jobs", { body: createRequest(draft) });
      notify(`Created ${data.name}`);
      navigate(`jobs/${part(data.job_id)}`, {}, { leave: true });
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  }
  const title = edits ? `Edit ${job.name}` : job ? `Duplicate ${job.name}` : "Create a job";
  return html`<nav class="crumbs" aria-label="Breadcrumbs"><${Link} to="jobs">Jobs<//> / ${job && html`<${Link} to=${`jobs/${part(job.job_id)}`}>
    ${job.name}<//> / `}${edits ? "edit" : "new"}</nav>
    <header class="head"><h1>${title}</h1>${edits && html`<span class="mute">revision ${job.revision}</span>`}<span class="gap"></span>
      ${edits ? html`<${CopyAs} method="PATCH" path=${`jobs/${part(job.job_id)}`} body=${patch} />` : html`<${CopyAs} method="POST" path="jobs"
        body=${isInvalid ? {} : createRequest(draft)} />`}</header>
    ${!may("editor") && html`<p class="tone-warn">You can view this form but not save it: that requires the role editor.</p>`}
    <form ref=${fields} class="job-form" onSubmit=${submit} novalidate>
      <div class="sections"><${TaskSection} form=${form} /><${TimingSection} form=${form} /><${FailureSection} form=${form} /><${PoolSection} form=${form} /><${LabelSection} form=${form} />
        </div>
      <aside class="beside"><${Card} title="Preview"><${SchedulePreview} draft=${draft} hear=${setPreviewed} /><//>
        ${edits && html`<${Card} title="Changes">${dirty ? html`<ul>${changed.map((name) => html`<li key=${name}>
          ${name.replaceAll("_", " ")}</li>`)}</ul>` : html`<p class="mute">No changes yet.</p>`}<//>`}
      </aside>
      <div class="form-bar"><${FormError} error=${error} faults=${refused.filter((one) => faults.includes(one))} reload=${error?.status === 412 ? reload : undefined} />
        <div class="actions"><span class="mute">${edits ? (dirty ? `${changed.length} ${changed.length === 1 ? "field" : "fields"} changed` : "No changes yet") : html`Fields marked <span class="required-mark">*</span> are required.`}</span>
          <${Link} class="button" to=${job ? `jobs/${part(job.job_id)}` : "jobs"}>Cancel<//>
          <button type="submit" class="main" disabled=${!ready || !may("editor")}>${edits ? "Review changes…" : "Create job"}</button></div></div>
    </form>`;
}

/** The default from the task's code, as placeholder text. `name` may be a path such as "retry.attempts". */
function taskDefault(defaults, name) {
  const value = name.split(".").reduce((part, one) => part?.[one], defaults);
  return value === undefined || value === null ? undefined : `${Array.isArray(value) ? value.join(", ") : value} (task default)`;
}

/** The preview and the refused request report the same errors of a schedule: each is shown once. */
function withoutRepeats(faults) {
  return faults.filter((one, n) => {
    const isFirst = faults.findIndex((other) => other.pointer === one.pointer && other.detail === one.detail) === n;
    if (!isFirst) markShown(one);
    return isFirst;
  });
}

const NULL = { detail: "a change cannot set null here, because null removes the field", hint: "omit it, or PUT the whole job" };

// Task and arguments

function TaskSection({ form }) {
  const { draft, set, at, refuse, tasks, known } = form;
  const id = useId();
  const task = useTask(known?.name ?? "");
  return html`<${Card} title="Task and arguments" wide=${true}>
    <div class="fields">
      <${TextField} label="Name" value=${draft.name} set=${set("name")} faults=${at("/name")} hint="unique within the tenant" required />
      ${draft.what !== "workflow" && html`<${SelectField} label="Type" of=${{ task: "run a task", http: "call a URL" }} value=${draft.what} set=${set("what")} />`}
      ${draft.what === "task" && html`<${TextField} label="Task" mono=${true} list=${id} value=${draft.task} set=${set("task")} faults=${at("/task")}
        hint="name the task is registered under; its worker need not run yet" required />`}
    </div>
    <datalist id=${id}>${tasks.map((one) => html`<option value=${one.name}>${one.doc.split("\n")[0]}</option>`)}</datalist>
    ${draft.what === "http"
      ? html`<${JsonField} label="HTTP request" value=${draft.http} set=${json(form, "http")} faults=${at("/http")}
        hint="url, method, headers, body, timeout, expect, secret" />`
      : draft.what === "workflow"
      ? html`<${JsonField} label="Parameters" value=${draft.kwargs} set=${json(form, "kwargs")} faults=${at("/kwargs")}
        hint="parameters of the workflow; change its nodes in code or through the API" />`
      : !draft.task.trim()
        ? html`<p class="mute">Enter a task to see its arguments.</p>`
        : html`<${Arguments} key=${task.data?.name ?? "unknown"} task=${task.data ?? null} value=${draft.kwargs} set=${set("kwargs")}
          refuse=${(names) => refuse("kwargs")(names.length > 0)} faults=${(name) => at(name ? `/kwargs/${name}` : "/kwargs")} />
          ${draft.args.length > 0 && html`<${JsonField} label="Positional arguments" rows=${3} value=${draft.args} set=${json(form, "args")}
            faults=${at("/args")} />`}`}
  <//>`;
}

/** Setter of a JSON field; the form cannot be submitted while the JSON is invalid. */
const json = (form, name) => (value) => {
  form.refuse(name)(value instanceof Error);
  if (!(value instanceof Error)) form.set(name)(value);
};

// Timing

function TimingSection({ form }) {
  const { draft, set, inner, at } = form;
  const zones = useId();
  const s = draft.schedule;
  const text = (name, label, hint, more = {}) => html`<${TextField} label=${label} hint=${hint} value=${s[name]} set=${inner("schedule", name)}
    faults=${at(`/schedule/${name}`)} ...${more} />`;
  const timetable = draft.kind === "cron" || draft.kind === "rrule";
  const use = (schedule) => form.change(draftOfSchedule(schedule));
  return html`<${Card} title="Timing" wide=${true}>
    <${ScheduleInEnglish} zone=${s.tz} use=${use} />
    <div class="fields">
      <${SelectField} label="Schedule" of=${KINDS} value=${draft.kind} set=${set("kind")} faults=${at("/schedule").filter((one) => one.pointer === "/schedule")} />
      ${draft.kind === "cron" && html`<${CronPresets} schedule=${s} set=${inner("schedule", "cron")} />`}
      ${draft.kind === "cron" && text("cron", "Cron expression", CRON_HINT, { mono: true, placeholder: "e.g. 30 2 * * *" })}
      ${draft.kind === "rrule" && html`${text("rrule", "Rule", "RFC 5545", { mono: true, placeholder: "e.g. FREQ=MONTHLY;BYDAY=-1FR" })}
        ${text("start", "Start", "local time of the first occurrence", { type: "datetime-local" })}`}
      ${draft.kind === "every" && html`${text("every", "Every", "for example 30s, 15m or 1h30m", { placeholder: "e.g. 15m" })}
        ${text("offset", "Offset", "shift from the full interval; optional")}`}
      ${draft.kind === "delay" && text("delay", "Delay", "from the end of a run to the start of the next", { placeholder: "e.g. 10m" })}
      ${draft.kind === "at" && html`<${DateTimeField} label="At" value=${s.at} set=${inner("schedule", "at")} faults=${at("/schedule/at")} />`}
      ${timetable && text("tz", "Time zone", "for example Europe/Paris", { list: zones })}
    </div>
    ${draft.kind === "several" && html`<${JsonField} label="Schedules" value=${draft.several} set=${json(form, "several")} faults=${at("/schedules")}
      hint="a list of schedules in the format of the API" />`}
    <datalist id=${zones}>${useMemo(() => ["UTC", ...Intl.supportedValuesOf("timeZone")].map((zone) => html`<option value=${zone}></option>`), [])}</datalist>
    ${timetable && html`<${Clock} form=${form} />`}
    <details><summary>Start, end, jitter, lateness</summary><div class="fields">
      ${["cron", "every"].includes(draft.kind) && html`<${TextField} label="Number of times" mode="numeric" value=${draft.schedule.times}
        set=${form.inner("schedule", "times")} faults=${at("/schedule/times")} hint="the schedule ends after this many occurrences" />`}
      <${DateTimeField} label="Not before" value=${draft.starts_at} set=${set("starts_at")} faults=${at("/starts_at")} />
      <${DateTimeField} label="Not after" value=${draft.ends_at} set=${set("ends_at")} faults=${at("/ends_at")} />
      <${TextField} label="Jitter" value=${draft.jitter} set=${set("jitter")} faults=${at("/jitter")}
        hint="delays runs by a fixed part of this; the part differs between jobs" placeholder="e.g. 10m" />
      <${TextField} label="Late after" value=${draft.late_after} set=${set("late_after")} faults=${at("/late_after")}
        hint="report a run that has not started this long after its time" placeholder="e.g. 15m" />
      <${TextField} label="Expires in" value=${draft.expires_in} set=${set("expires_in")} faults=${at("/expires_in")}
        hint="skip a run that has not started this long after its time" placeholder=${form.wish("expires_in", "e.g. 10m")} />
    </div></details><//>`;
}

function Clock({ form }) {
  const { draft, inner, at } = form;
  const s = draft.schedule;
  const calendars = useData((stop) => get("calendars", { limit: 200 }, stop), [], { once: true }).data?.items ?? [];
  const known = Object.fromEntries([...new Set([...calendars.map((one) => one.name), s.calendar].filter(Boolean))].map((name) => [name, name]));
  const select = (name, label, of, hint) => html`<${SelectField} label=${label} of=${of} hint=${hint} value=${s[name]} set=${inner("schedule", name)}
    faults=${at(`/schedule/${name}`)} />`;
  return html`<details open=${Boolean(s.calendar || s.gap || s.fold || s.seconds || s.dialect || s.day_match)}><summary>Calendar, DST and dialect</summary><div class="fields">
    ${select("calendar", "Calendar", { "": "none", ...known }, "days off to observe")}
    ${s.calendar && select("shift", "On a day off", SHIFT)}
    ${select("gap", "Time skipped by DST", GAP)}${select("fold", "Time repeated by DST", FOLD)}
    ${draft.kind === "cron" && html`${select("dialect", "Dialect", DIALECT)}${select("day_match", "Day of month and weekday", DAY_MATCH)}`}
    ${draft.kind === "cron" && html`<${Checkbox} label="Six fields, seconds first" value=${s.seconds} set=${inner("schedule", "seconds")} />`}
  </div></details>`;
}

// Failures

function FailureSection({ form }) {
  const { draft, set, inner, at } = form;
  const retry = (name, label, hint, more) => html`<${TextField} label=${label} hint=${hint} value=${draft.retry[name]} set=${inner("retry", name)}
    faults=${at(`/retry/${name}`)} ...${more} />`;
  const tries = at("/retry").filter((one) => one.pointer === "/retry" || one.pointer === "/retry/attempts");
  return html`<${Card} title="Failures" wide=${true}>
    <div class="fields">
      <${SelectField} label="Misfire" hint="when scheduled times were missed" of=${MISFIRE} value=${draft.misfire} set=${set("misfire")}
        faults=${at("/misfire")} />
      <${SelectField} label="Overlap" hint="when an earlier run is unfinished" of=${OVERLAP} value=${draft.overlap} set=${set("overlap")}
        faults=${at("/overlap")} />
      ${retry("attempts", "Attempts", "total number of attempts", { mode: "numeric", placeholder: form.wish("retry.attempts", "default: 3"), faults: tries })}
      <${TextField} label="Timeout" value=${draft.timeout} set=${set("timeout")} faults=${at("/timeout")} hint="per attempt"
        placeholder=${form.wish("timeout", "none; e.g. 10m")} />
    </div>
    ${draft.misfire === "fire_all" && html`<div class="fields">
      <${TextField} label="At most" mode="numeric" hint="missed occurrences that run" value=${draft.max_catchup} set=${set("max_catchup")} faults=${at("/max_catchup")} placeholder="default: 100" />
      <${TextField} label="Not older than" value=${draft.catchup_window} set=${set("catchup_window")} faults=${at("/catchup_window")} placeholder="default: 7d" />
      <${TextField} label="Per minute" mode="numeric" value=${draft.catchup_rate} set=${set("catchup_rate")} faults=${at("/catchup_rate")} placeholder="no limit" /></div>`}
    <details><summary>Retry delays, heartbeat, delivery</summary><div class="fields">
      ${retry("base", "First retry delay", "doubles with each attempt", { placeholder: form.wish("retry.base", "default: 5s") })}
      ${retry("cap", "Longest retry delay", "", { placeholder: form.wish("retry.cap", "default: 15m") })}
      ${retry("delays", "Or fixed retry delays", "comma-separated: 1s, 1m, 1h", { placeholder: form.wish("retry.delays") })}
      ${retry("jitter", "Retry jitter", "0 to 1: random part of each delay", { placeholder: form.wish("retry.jitter") })}
      ${retry("never_on", "Never retry on", "exception names, comma-separated")}
      ${retry("only_on", "Only retry on", "exception names, comma-separated")}
      ${retry("max_elapsed", "Retry for at most", "from the start of the first attempt", { placeholder: "e.g. 2h" })}
      <${TextField} label="Pause after failures" mode="numeric" value=${draft.pause_after_failures} set=${set("pause_after_failures")}
        faults=${at("/pause_after_failures")} hint="dead runs in a row after which the job is paused" />
      <${Checkbox} label="Keep the result for the next run" value=${draft.keep_result} set=${set("keep_result")} />
      <${TextField} label="Heartbeat" value=${draft.heartbeat} set=${set("heartbeat")} faults=${at("/heartbeat")}
        hint="an attempt without a heartbeat for longer is lost" placeholder=${form.wish("heartbeat")} />
      <${SelectField} label="Delivery" of=${DELIVERY} value=${draft.delivery} set=${set("delivery")} faults=${at("/delivery")} />
    </div></details><//>`;
}

// Pool and concurrency

function PoolSection({ form }) {
  const { draft, set, at } = form;
  const pools = useData((stop) => get("pools", { limit: 200 }, stop), [], { once: true }).data?.items ?? [];
  const known = Object.fromEntries([...new Set([...pools.map((one) => one.name), draft.pool].filter(Boolean))].map((name) => [name, name]));
  return html`<${Card} title="Pool and concurrency" wide=${true}><div class="fields">
    <${SelectField} label="Pool" of=${{ "": "automatic, by duration", ...known }} value=${draft.pool} set=${set("pool")} faults=${at("/pool")} />
    <${TextField} label="Expected duration" value=${draft.expected_duration} set=${set("expected_duration")} faults=${at("/expected_duration")}
      placeholder=${form.wish("expected_duration", "e.g. 30s")} hint="over a minute: uses the pool “long”" />
    <${TextField} label="Priority" mode="numeric" value=${draft.priority} set=${set("priority")} faults=${at("/priority")} hint="0 to 9; higher numbers run first"
      placeholder=${form.wish("priority", "default: 5")} />
    <${TextField} label="Max. concurrent runs" mode="numeric" value=${draft.max_concurrency} set=${set("max_concurrency")} faults=${at("/max_concurrency")} placeholder="no limit" />
    <${TextField} label="Concurrency key" value=${draft.concurrency_key} set=${set("concurrency_key")} faults=${at("/concurrency_key")}
      hint="jobs with the same key share a limit" placeholder="e.g. warehouse" />
    ${draft.concurrency_key && html`<${TextField} label="Limit of the key" mode="numeric" value=${draft.concurrency_limit} set=${set("concurrency_limit")}
      faults=${at("/concurrency_limit")} placeholder="default: 1" />`}
  </div><//>`;
}

function LabelSection({ form }) {
  const { draft, set, at } = form;
  return html`<${Card} title="Labels and state" wide=${true}><div class="fields">
    <${TextField} label="Tags" value=${draft.tags} set=${set("tags")} faults=${at("/tags")} hint="comma-separated" placeholder="e.g. billing, nightly" />
    <${TextField} label="Region" value=${draft.region} set=${set("region")} faults=${at("/region")} hint="optional: region whose schedulers run this job" />
    <${SelectField} label="After completion" hint="when its last scheduled run has ended; a job that is kept is deleted after the retention period" of=${AFTER_COMPLETION}
      value=${draft.after_completion} set=${set("after_completion")} faults=${at("/after_completion")} />
    <${Checkbox} label="Enabled" value=${draft.enabled} set=${set("enabled")} hint="a disabled job never runs on its schedule" />
  </div><//>`;
}

// Preview and review

function SchedulePreview({ draft, hear }) {
  useEffect(() => {
    if (draft.kind === "manual" || draft.kind === "several") hear([]);
  }, [draft.kind]);
  if (draft.kind === "manual") return html`<p>No schedule: the job runs only when it is started manually or through the API.</p>`;
  if (draft.kind === "several") return draft.several.map?.((one) => html`<${Preview} key=${write(one)} schedule=${one} job=${draft.name.trim()} />`) ?? null;
  return html`<${Preview} schedule=${scheduleOf(draft)} job=${draft.name.trim() || undefined} onFaults=${hear} />`;
}

/** Shows a dry run of the change before saving it: changed fields, and added and removed scheduled times. */
function review({ job, etag, patch, fail, reload }) {
  openDialog(`Save changes of ${job.name}?`, function Review({ close }) {
    const path = `jobs/${part(job.job_id)}`;
    const found = useData((stop) => request("PATCH", path, { terms: { dry_run: "true" }, body: patch, etag, signal: stop }), [], { once: true });
    const [busy, setBusy] = useState(false);
    const [error, setError] = useState(null);
    const problem = error ?? found.error;
    useEffect(() => {
      if (problem?.status !== 422) return;
      fail(problem); // show the errors at the fields
      close();
    }, [problem]);
    async function save() {
      setBusy(true);
      try {
        await request("PATCH", path, { body: patch, etag });
        close();
        notify(`Saved ${job.name}`);
        navigate(path, {}, { leave: true });
      } catch (one) {
        setError(one);
        setBusy(false);
      }
    }
    const discard = () => {
      close();
      reload();
    };
    return html`${!found.data && !found.error && html`<p class="loading" aria-busy="true">Loading the preview…</p>`}
      <${ErrorMessage} error=${problem} />
      ${problem?.status === 412 && html`<p>Someone else has changed the job. Reloading discards your input.</p>`}
      ${found.data && html`<${DryRun} of=${found.data.data} />`}
      <div class="actions"><button type="button" autofocus onClick=${close}>Continue editing</button>
        ${problem?.status === 412 ? html`<button type="button" class="main" onClick=${discard}>Reload</button>` : html`<button type="button"
          class="main" disabled=${busy || !found.data} onClick=${save}>Save changes</button>`}</div>`;
  });
}

function DryRun({ of }) {
  const { fires } = of;
  const same = !fires.removed.length && !fires.added.length;
  const some = (list, count, sign, word) => list.length > 0 && html`<details><summary>${count.toLocaleString("en")} scheduled runs ${word}</summary>
    <ul class="samples">${list.slice(0, SAMPLES).map((at) => html`<li key=${at}>${sign} <${Time} at=${at} short=${false} />
      </li>`)}${count > SAMPLES && html`<li class="mute">and ${(count - SAMPLES).toLocaleString("en")} more</li>`}</ul></details>`;
  return html`<${Changes} of=${of.changes} />
    <p class="verdict ${same ? "tone-calm" : "tone-warn"}">${same
      ? html`The scheduled times do not change: ${fires.before.toLocaleString("en")} runs until <${Time} at=${fires.to} short=${false} />.`
      : html`The scheduled times change: ${fires.before.toLocaleString("en")} → ${fires.after.toLocaleString("en")} runs until <${Time} at=${fires.to}
        short=${false} />.`}
      ${of.next_before !== of.next_after && html` Next: <${Time} at=${of.next_before} short=${false} /> → <${Time} at=${of.next_after}
        short=${false} />.`}</p>
    ${some(fires.removed, fires.before - fires.kept, "−", "removed")}${some(fires.added, fires.after - fires.kept, "+", "added")}
    ${of.warnings.map((one) => html`<p class="tone-warn"><span aria-hidden="true">⚠</span> ${one.text}</p>`)}`;
}
