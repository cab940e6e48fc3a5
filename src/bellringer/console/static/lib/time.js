// Formats instants and durations.
import { signal } from "./html.js";
import { zone } from "./preferences.js";

export const now = signal(Date.now()); // updated once a second while the page is visible
setInterval(() => document.hidden || (now.value = Date.now()), 1000);

const [MINUTE, HOUR, DAY] = [60, 3_600, 86_400]; // in seconds
const UNITS = [["d", DAY], ["h", HOUR], ["m", MINUTE], ["s", 1]];

/** Formats a duration with at most two units: 1d 3h, 2m 5s, 36s, 4.2s, 340ms. */
export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  const size = Math.abs(seconds);
  if (size < 0.0005) return "<1ms";
  if (size < 0.9995) return `${Math.round(size * 1000)}ms`;
  if (size < 9.95) return `${size.toFixed(1)}s`;
  if (size < 59.5) return `${Math.round(size)}s`;
  let rest = Math.round(size);
  const parts = [];
  for (const [unit, length] of UNITS) {
    const count = Math.floor(rest / length);
    rest -= count * length;
    if (count) parts.push(`${count}${unit}`);
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

/** Formats the distance to an instant, less precisely the longer it is: 3s, 9m 12s, 38m, 17h, 19d. */
export function formatAge(seconds) {
  if (seconds < 10) return `${Math.round(seconds)}s`;
  if (seconds < 10 * MINUTE) return formatDuration(seconds);
  if (seconds < 10 * HOUR) return formatDuration(seconds - (seconds % MINUTE));
  return seconds < 2 * DAY ? `${Math.floor(seconds / HOUR)}h` : `${Math.floor(seconds / DAY)}d`;
}

export function fromNow(instant, moment = now.value) {
  const seconds = (new Date(instant) - moment) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  const size = Math.abs(seconds);
  return seconds > 0 ? `in ${formatAge(size)}` : `${formatAge(size)} ago`;
}

const formats = new Map();
function format(tz) {
  if (!formats.has(tz)) {
    const parts = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };
    let made;
    try {
      made = new Intl.DateTimeFormat("sv-SE", { ...parts, timeZone: tz, timeZoneName: "short" });
    } catch {
      made = new Intl.DateTimeFormat("sv-SE", { ...parts, timeZone: "UTC", timeZoneName: "short" });
    }
    formats.set(tz, made);
  }
  return formats.get(tz);
}

export const LOCAL = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** Formats an instant in the chosen time zone. `job`: time zone of the job, for the choice "Job's time zone". */
export function formatTime(instant, job) {
  if (!instant) return "–";
  const tz = zone.value === "utc" ? "UTC" : zone.value === "job" && job ? job : LOCAL;
  return format(tz).format(new Date(instant));
}

export const formatClock = (instant, job) => formatTime(instant, job).slice(11, 19);
export const secondsBetween = (from, to) => (new Date(to) - new Date(from)) / 1000;

const UNIT_SECONDS = { ms: 0.001, s: 1, m: MINUTE, h: HOUR, d: DAY };

/** Seconds of a duration as the API writes it, such as "1m30s" or "250ms". */
export function parseDuration(text) {
  return [...text.matchAll(/([\d.]+)\s*(ms|s|m|h|d)/g)].reduce((sum, [, count, unit]) => sum + Number(count) * UNIT_SECONDS[unit], 0);
}
