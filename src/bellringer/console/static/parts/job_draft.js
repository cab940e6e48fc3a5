// A job as a form holds it: texts as they are typed. And as the API takes it: whole, or as what has changed.
import { read, write } from "../lib/json.js";
import { kindOf } from "./schedule.js";

const NUMBER = /^-?\d+(\.\d+)?$/;
const SCHEDULE = {
  cron: "", tz: "UTC", seconds: false, gap: "", fold: "", calendar: "", shift: "skip", rrule: "", start: "", every: "", offset: "", delay: "", at: "",
};
const TEXTS = [
  "pool", "timeout", "heartbeat", "expected_duration", "delivery", "catchup_window", "concurrency_key",
  "jitter", "late_after", "starts_at", "ends_at", "region",
];
const NUMBERS = ["priority", "max_catchup", "catchup_rate", "max_concurrency", "concurrency_limit"];
const HTTP = { url: "https://", method: "POST" };

const blank = (names) => Object.fromEntries(names.map((name) => [name, ""]));
export const EMPTY = {
  name: "", what: "task", task: "", args: [], kwargs: {}, http: HTTP, kind: "cron", schedule: SCHEDULE, several: [], seed: null,
  ...blank(TEXTS), ...blank(NUMBERS), retry: blank(["attempts", "base", "cap", "delays", "never_on"]),
  misfire: "fire_once", overlap: "skip", enabled: true, tags: "",
};

/** What the server said of a job, as a form. */
export function draftOf(job) {
  const written = job.schedules.map(({ calendar_digest: _digest, ...one }) => one);
  const [first = {}] = written;
  const text = (value) => (value === null || value === undefined ? "" : String(value));
  const names = (list) => Object.fromEntries(list.map((name) => [name, text(job[name])]));
  return {
    ...EMPTY, ...names(TEXTS), ...names(NUMBERS),
    name: job.name, what: job.http ? "http" : job.workflow ? "workflow" : "task", task: job.http ? "" : job.task, args: job.args, kwargs: job.kwargs, http: job.http ?? HTTP,
    kind: written.length > 1 ? "several" : written.length ? kindOf(first) : "manual",
    schedule: { ...SCHEDULE, ...(written.length === 1 && first) }, several: written, seed: first.seed ? { of: first.cron, value: first.seed } : null,
    pool: job.routed ? "" : job.pool,
    retry: {
      attempts: text(job.retry.attempts), base: text(job.retry.base), cap: text(job.retry.cap),
      delays: (job.retry.delays ?? []).join(", "), never_on: (job.retry.never_on ?? []).join(", "),
    },
    misfire: job.misfire, overlap: job.overlap, enabled: job.enabled, tags: job.tags.join(", "),
  };
}

const number = (text) => (NUMBER.test(text.trim()) ? read(text.trim()) : text); // what is no number the server refuses, and says where
export const list = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);
const empty = (value) => value === undefined || value === "" || value === null || (typeof value === "object" && Object.keys(value).length === 0);
const filled = (document) => Object.fromEntries(Object.entries(document).filter(([, value]) => !empty(value)));

/** The schedule that the form says, or null while nothing is said. */
export function scheduleOf({ kind, schedule: s, seed }) {
  const main = s[kind]?.trim();
  if (!main) return null;
  const days = { calendar: s.calendar, shift: s.calendar && s.shift !== "skip" ? s.shift : "" };
  const clock = { tz: s.tz.trim() === "UTC" ? "" : s.tz.trim(), gap: s.gap, fold: s.fold, ...days };
  if (kind === "cron") return filled({ cron: main, ...clock, seconds: s.seconds || "", seed: seed?.of === main ? seed.value : "" });
  if (kind === "rrule") return filled({ rrule: main, start: s.start, ...clock });
  if (kind === "every") return filled({ every: main, offset: s.offset });
  return { [kind]: main };
}

function schedulesOf(draft) {
  if (draft.kind === "manual") return [];
  if (draft.kind === "several") return draft.several;
  return [scheduleOf(draft) ?? { [draft.kind]: "" }];
}

/** The whole job, as the API takes it; what is as ever is left out. */
export function documentOf(draft) {
  const { retry } = draft;
  const what = draft.what === "http" ? { http: draft.http } : { task: draft.task.trim(), args: draft.args, kwargs: draft.kwargs };
  return filled({
    name: draft.name.trim(), ...what, schedules: schedulesOf(draft),
    ...Object.fromEntries(TEXTS.map((name) => [name, draft[name].trim()])),
    ...Object.fromEntries(NUMBERS.map((name) => [name, number(draft[name])])),
    retry: filled({ attempts: number(retry.attempts), base: retry.base, cap: retry.cap, delays: list(retry.delays), never_on: list(retry.never_on) }),
    misfire: draft.misfire === "fire_once" ? "" : draft.misfire, overlap: draft.overlap === "skip" ? "" : draft.overlap,
    enabled: draft.enabled ? "" : false, tags: list(draft.tags),
  });
}

/** A job of one schedule is written with `schedule`, as people do. */
export function createOf(draft) {
  const { schedules = [], ...rest } = documentOf(draft);
  return schedules.length === 1 ? { ...rest, schedule: schedules[0] } : schedules.length ? { ...rest, schedules } : rest;
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** A merge patch (RFC 7396) that turns one document into the other. */
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

/** What a merge patch cannot say: a null inside of an object, which there means to leave out. Answers the fields. */
export const unsayable = (before, after) => Object.keys(mergePatch(merged(before, mergePatch(before, after)), after));

const place = (pointer = "") => pointer.replace(/^\/schedules\/0(?=\/|$)/, "/schedule").replace(/^\/payload/, "/kwargs");

/** What is wrong, at the places where a form has its fields: a list of one schedule is the schedule. */
export const placed = (faults) => faults.map((one) => ({ ...one, pointer: place(one.pointer) }));
