// The days and hours of a calendar view, made of the response of GET /calendar.
import { addDays, addMonths, formatDate, wallClock, weekday } from "../lib/zoned.js";

export const VIEWS = { day: "Day", week: "Week", month: "Month" };
const WEEKS = 6; // of the month view
const REPEATS = 4; // a job that occurs more often in an hour is shown once, at the top of the day

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
 * only the first jobs are named.
 */
export function daysOf(data, today) {
  return data.days.map((day) => {
    const all = data.cells.filter((cell) => cell.from >= day.from && cell.from < day.to);
    const listed = all.reduce((sum, cell) => sum + cell.fires, 0);
    const { cells, repeats } = data.cell === "hour" ? withoutRepeats(all) : { cells: all, repeats: [] };
    return {
      ...day, cells, repeats, listed, hidden: day.fires === null ? 0 : Math.max(0, day.fires - listed),
      freezes: data.freezes.filter((freeze) => overlaps(day, freeze)), isToday: day.date === today, isPast: day.date < today, isWeekend: weekday(day.date) > 4,
    };
  });
}

function withoutRepeats(cells) {
  const repeats = new Map();
  const others = cells.map((cell) => {
    const often = cell.entries.filter((entry) => entry.times > REPEATS);
    for (const { job_id, job } of often) repeats.set(job_id, { job_id, job });
    return { ...cell, jobs: cell.jobs - often.length, entries: cell.entries.filter((entry) => entry.times <= REPEATS) };
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
