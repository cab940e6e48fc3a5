// The days and hours of a calendar view, made of the response of GET /calendar.
import { addDays, addMonths, formatDate, wallClock, weekday } from "../lib/zoned.js";

export const VIEWS = { day: "Day", week: "Week", month: "Month" };
const WEEKS = 6; // of the month view

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

/** The days of a response, each with its cells and freezes. `hidden`: occurrences of jobs that are in no cell, because only the first jobs are read. */
export function daysOf(data, today) {
  return data.days.map((day) => {
    const cells = data.cells.filter((cell) => cell.from >= day.from && cell.from < day.to);
    const listed = cells.reduce((sum, cell) => sum + cell.fires, day.repeats.fires);
    return {
      ...day, cells, listed, hidden: day.fires === null ? 0 : Math.max(0, day.fires - listed), freezes: data.freezes.filter((freeze) => overlaps(day, freeze)), isToday: day.date === today, isPast: day.date < today, isWeekend: weekday(day.date) > 4,
    };
  });
}

/** The jobs that repeat all day, one item for each row of consecutive days: the numbers of these days, and how many runs failed on each. */
export function bandsOf(days) {
  const found = new Map(); // the bands of each job
  days.forEach((day, n) => {
    for (const { job_id, job, times, failed } of day.repeats.items) {
      const bands = found.get(job_id) ?? found.set(job_id, []).get(job_id);
      const band = bands.at(-1);
      if (band?.last === n - 1) Object.assign(band, { last: n, times: Math.max(times, band.times), failed: [...band.failed, failed] });
      else bands.push({ job_id, job, first: n, last: n, times, failed: [failed] });
    }
  });
  return [...found.values()].flat().sort((a, b) => (a.job < b.job ? -1 : 1));
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
