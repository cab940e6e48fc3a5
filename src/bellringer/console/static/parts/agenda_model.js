// The days and hours of a calendar view, made of the response of GET /calendar.
import { addDays, addMonths, formatDate, wallClock, weekday } from "../lib/zoned.js";

export const VIEWS = { day: "Day", week: "Week", month: "Month" };
const WEEKS = 6; // of the month view
const REPEATS = 4; // a job that occurs more often in an hour is shown once, at the top of the day …
const ALL_DAY_HOURS = 20; // … as is a job that occurs in so many hours of a day: it would fill the grid and hide the others

/** The first day of a view and the number of its days. */
export function spanOf(view, date) {
  if (view === "day") return { start: date, days: 1 };
  if (view === "week") return { start: addDays(date, -weekday(date)), days: 7 };
  const first = `${date.slice(0, 8)}01`;
  const start = addDays(first, -weekday(first));
  const needed = weekday(first) + Number(addDays(addMonths(first, 1), -1).slice(8));
  return { start, days: Math.min(Math.ceil(needed / 7), WEEKS) * 7 };
}

export function step(view, date, by) {
  return view === "month" ? addMonths(`${date.slice(0, 8)}01`, by) : addDays(date, by * (view === "week" ? 7 : 1));
}

export function titleOf(view, date) {
  if (view === "day") return formatDate(date, { weekday: "long", day: "numeric", month: "long", year: "numeric" });
  if (view === "month") return formatDate(date, { month: "long", year: "numeric" });
  const { start } = spanOf(view, date);
  const end = addDays(start, 6);
  const same = start.slice(0, 7) === end.slice(0, 7);
  const from = formatDate(start, same ? { day: "numeric" } : { day: "numeric", month: "short", ...(start.slice(0, 4) === end.slice(0, 4) ? {} : { year: "numeric" }) });
  return `${from} – ${formatDate(end, { day: "numeric", month: same ? "long" : "short", year: "numeric" })}`;
}

const overlaps = (span, freeze) => Date.parse(freeze.from) < Date.parse(span.to) && Date.parse(freeze.to) > Date.parse(span.from);

/**
 * The days of a response, each with its cells, freezes and notes. `hidden`: occurrences that are in the count of the day and in no cell, because
 * only the first jobs are named. `repeats`: jobs that run all day long, which are in no cell of an hour.
 */
export function daysOf(data, today) {
  const ids = data.cell === "hour" ? repeatingJobs(data) : new Set();
  return data.days.map((day) => {
    const all = cellsOf(data, day);
    const listed = all.reduce((sum, cell) => sum + cell.fires, 0);
    const { cells, repeats } = data.cell === "hour" ? withoutRepeats(all, ids) : { cells: all, repeats: [] };
    return {
      ...day, cells, repeats, listed, hidden: day.fires === null ? 0 : Math.max(0, day.fires - listed),
      freezes: data.freezes.filter((freeze) => overlaps(day, freeze)), isToday: day.date === today, isPast: day.date < today, isWeekend: weekday(day.date) > 4,
    };
  });
}

const cellsOf = (data, day) => data.cells.filter((cell) => cell.from >= day.from && cell.from < day.to);

/** The ids of jobs that occur many times in an hour, or in nearly every hour of a day. */
function repeatingJobs(data) {
  const found = new Set();
  for (const day of data.days) {
    const hours = new Map();
    for (const { job_id, times } of cellsOf(data, day).flatMap((cell) => cell.entries)) {
      hours.set(job_id, (hours.get(job_id) ?? 0) + 1);
      if (times > REPEATS || hours.get(job_id) >= ALL_DAY_HOURS) found.add(job_id);
    }
  }
  return found;
}

/**
 * A response lists only the first jobs of a cell, and jobs that repeat come last. A job that is not among those listed, but repeats in the
 * nearest complete hours before and after, repeats in between too.
 */
function withoutRepeats(cells, ids) {
  const repeats = new Map();
  const often = cells.map((cell) => cell.entries.filter((entry) => ids.has(entry.job_id)));
  for (const { job_id, job, times } of often.flat()) repeats.set(job_id, { job_id, job, times: times + (repeats.get(job_id)?.times ?? 0) });
  const isCut = (cell) => cell.jobs > cell.entries.length;
  const idsNear = (n, by) => {
    let at = n + by;
    while (cells[at] && isCut(cells[at])) at += by;
    return cells[at] && new Set(often[at].map((entry) => entry.job_id));
  };
  const others = cells.map((cell, n) => {
    let count = often[n].length;
    if (isCut(cell)) {
      const listed = new Set(cell.entries.map((entry) => entry.job_id));
      const near = [idsNear(n, -1), idsNear(n, 1)].filter(Boolean);
      const unlisted = near.length === 0 ? [] : [...near[0]].filter((id) => !listed.has(id) && near.every((other) => other.has(id)));
      count += Math.min(unlisted.length, cell.jobs - cell.entries.length);
    }
    return { ...cell, jobs: cell.jobs - count, entries: cell.entries.filter((entry) => !ids.has(entry.job_id)) };
  });
  return { cells: others.filter((cell) => cell.jobs), repeats: [...repeats.values()].sort((a, b) => (a.job < b.job ? -1 : 1)) };
}

/** The rows of a day or week: hours by the wall clock, each with one place per day. A skipped hour has none; a repeated hour has two cells. */
export function hoursOf(data, days) {
  const hours = Array.from({ length: 24 }, () => days.map((day) => ({ day, spans: [], cells: [] })));
  days.forEach((day, column) => {
    for (let at = Date.parse(day.from); at < Date.parse(day.to); at += 3_600_000) {
      const span = { from: new Date(at).toISOString(), to: new Date(Math.min(at + 3_600_000, Date.parse(day.to))).toISOString() };
      hours[wallClock(at, data.tz).hour][column].spans.push(span);
    }
    for (const cell of day.cells) hours[wallClock(cell.from, data.tz).hour][column].cells.push(cell);
  });
  return hours.map((places) => places.map((place) => ({ ...place, freezes: place.day.freezes.filter((freeze) => place.spans.some((span) => overlaps(span, freeze))) })));
}
