// Converts between jobs of the API and drafts of the form, in which all fields are texts.
import { read, write } from "../lib/json.js";
import { kindOf } from "./schedule.js";

const NUMBER = /^-?\d+(\.\d+)?$/;
const SCHEDULE = {
  cron: "", tz: "UTC", seconds: false, gap: "", fold: "", calendar: "", shift: "skip", rrule: "", start: "", every: "", offset: "", delay: "", at: "",
  dialect: "", day_match: "", times: "", exdate: [], rdate: [],
};
const TEXTS = [
  "pool", "timeout", "heartbeat", "expected_duration", "delivery", "catchup_window", "concurrency_key",
  "jitter", "late_after", "expires_in", "starts_at", "ends_at", "region",
];
const NUMBERS = ["priority", "max_catchup", "catchup_rate", "max_concurrency", "concurrency_limit", "pause_after_failures"];
const HTTP = { url: "https://", method: "POST" };

const blank = (names) => Object.fromEntries(names.map((name) => [name, ""]));
export const EMPTY = {
  name: "", what: "task", task: "", args: [], kwargs: {}, http: HTTP, kind: "cron", schedule: SCHEDULE, several: [], seed: null,
  ...blank(TEXTS), ...blank(NUMBERS), retry: blank(["attempts", "base", "cap", "delays", "jitter", "never_on", "only_on", "max_elapsed"]),
  misfire: "fire_once", overlap: "skip", after_completion: "keep", keep_result: false, enabled: true, tags: "",
};

/** Converts a schedule from the API to the fields `kind`, `schedule` and `seed` of a draft. */
export function draftOfSchedule(schedule) {
  const { seed, calendar_digest: _digest, ...one } = schedule;
  return {
    kind: kindOf(schedule),
    schedule: { ...SCHEDULE, ...one, times: one.times === undefined || one.times === null ? "" : String(one.times) },
    seed: seed ? { of: schedule.cron, value: seed } : null,
  };
}

/** Converts a job from the API to a draft. */
export function draftOf(job) {
  const schedules = job.schedules.map(({ calendar_digest: _digest, ...one }) => one);
  const [first = {}] = schedules;
  const text = (value) => (value === null || value === undefined ? "" : String(value));
  const names = (list) => Object.fromEntries(list.map((name) => [name, text(job[name])]));
  return {
    ...EMPTY, ...names(TEXTS), ...names(NUMBERS),
    name: job.name, what: job.http ? "http" : job.workflow ? "workflow" : "task", task: job.http ? "" : job.task, args: job.args, kwargs: job.kwargs, http: job.http ?? HTTP,
    kind: schedules.length > 1 ? "several" : schedules.length ? kindOf(first) : "manual",
    schedule: { ...SCHEDULE, ...(schedules.length === 1 && { ...first, times: text(first.times) }) }, several: schedules, seed: first.seed ? { of: first.cron, value: first.seed } : null,
    pool: job.routed ? "" : job.pool,
    retry: {
      attempts: text(job.retry.attempts), base: text(job.retry.base), cap: text(job.retry.cap),
      delays: (job.retry.delays ?? []).join(", "), jitter: text(job.retry.jitter), never_on: (job.retry.never_on ?? []).join(", "),
      only_on: (job.retry.only_on ?? []).join(", "), max_elapsed: text(job.retry.max_elapsed),
    },
    misfire: job.misfire, overlap: job.overlap, after_completion: job.after_completion, keep_result: job.keep_result, enabled: job.enabled, tags: job.tags.join(", "),
  };
}

const number = (text) => (NUMBER.test(text.trim()) ? read(text.trim()) : text); // invalid numbers are sent as text; the server reports the error
export const list = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);
const empty = (value) => value === undefined || value === "" || value === null || (typeof value === "object" && Object.keys(value).length === 0);
const filled = (document) => Object.fromEntries(Object.entries(document).filter(([, value]) => !empty(value)));

/** The schedule of a draft, or null if it is empty. */
export function scheduleOf({ kind, schedule: s, seed }) {
  const main = s[kind]?.trim();
  if (!main) return null;
  const days = { calendar: s.calendar, shift: s.calendar && s.shift !== "skip" ? s.shift : "" };
  const clock = { tz: s.tz.trim() === "UTC" ? "" : s.tz.trim(), gap: s.gap, fold: s.fold, ...days };
  const count = s.times.trim() ? { times: number(s.times), start: s.start } : {};
  const reading = { dialect: s.dialect, day_match: s.day_match };
  if (kind === "cron") return filled({ cron: main, ...clock, ...reading, ...count, seconds: s.seconds || "", seed: seed?.of === main ? seed.value : "" });
  if (kind === "rrule") return filled({ rrule: main, start: s.start, exdate: s.exdate, rdate: s.rdate, ...clock });
  if (kind === "every") return filled({ every: main, offset: s.offset, ...count });
  return { [kind]: main };
}

function schedulesOf(draft) {
  if (draft.kind === "manual") return [];
  if (draft.kind === "several") return draft.several;
  return [scheduleOf(draft) ?? { [draft.kind]: "" }];
}

/** The job document of a draft, without default values. */
export function documentOf(draft) {
  const { retry } = draft;
  const what = draft.what === "http" ? { http: draft.http } : { task: draft.task.trim(), args: draft.args, kwargs: draft.kwargs };
  return filled({
    name: draft.name.trim(), ...what, schedules: schedulesOf(draft),
    ...Object.fromEntries(TEXTS.map((name) => [name, draft[name].trim()])),
    ...Object.fromEntries(NUMBERS.map((name) => [name, number(draft[name])])),
    retry: filled({
      attempts: number(retry.attempts), base: retry.base, cap: retry.cap, delays: list(retry.delays), jitter: number(retry.jitter),
      never_on: list(retry.never_on), only_on: list(retry.only_on), max_elapsed: retry.max_elapsed,
    }),
    misfire: draft.misfire === "fire_once" ? "" : draft.misfire, overlap: draft.overlap === "skip" ? "" : draft.overlap,
    after_completion: draft.after_completion === "keep" ? "" : draft.after_completion, keep_result: draft.keep_result || "", enabled: draft.enabled ? "" : false, tags: list(draft.tags),
  });
}

/** The body of a create request; a single schedule is sent as `schedule`. */
export function createRequest(draft) {
  const { schedules = [], ...rest } = documentOf(draft);
  return schedules.length === 1 ? { ...rest, schedule: schedules[0] } : schedules.length ? { ...rest, schedules } : rest;
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The merge patch (RFC 7396) between two documents. */
export function mergePatch(before, after) {
  const patch = {};
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const [old, now] = [before[name], after[name]];
    if (write(old) === write(now)) continue;
    if (now === undefined) patch[name] = null;
    else patch[name] = isObject(old) && isObject(now) ? mergePatch(old, now) : now;
  }
  return patch;
}

function merged(target, patch) {
  if (!isObject(patch)) return patch;
  const result = isObject(target) ? { ...target } : {};
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete result[name];
    else result[name] = merged(result[name], value);
  }
  return result;
}

/** Fields that a merge patch cannot express: it cannot set a nested value to null, because null removes the field. */
export const inexpressible = (before, after) => Object.keys(mergePatch(merged(before, mergePatch(before, after)), after));

const place = (pointer = "") => pointer.replace(/^\/schedules\/0(?=\/|$)/, "/schedule").replace(/^\/payload/, "/kwargs");

/** Maps the pointers of errors to fields of the form: `/schedules/0` becomes `/schedule`. */
export const mapPointers = (faults) => faults.map((one) => ({ ...one, pointer: place(one.pointer) }));
