// Instants and lengths of time, as people read them.
import { signal } from "./html.js";
import { zone } from "./kept.js";

export const now = signal(Date.now()); // moves once a second, while the page is seen
setInterval(() => document.hidden || (now.value = Date.now()), 1000);

const UNITS = [["d", 86_400], ["h", 3_600], ["m", 60], ["s", 1]];

/** 1d 3h · 2m 5s · 340 ms: at most two units. */
export function span(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  const size = Math.abs(seconds);
  if (size < 0.0005) return "0 ms";
  if (size < 1) return `${Math.round(size * 1000)} ms`;
  if (size < 10) return `${size.toFixed(1)} s`;
  let rest = Math.round(size);
  const told = [];
  for (const [unit, length] of UNITS) {
    const count = Math.floor(rest / length);
    rest -= count * length;
    if (count) told.push(`${count}${unit}`);
    if (told.length === 2) break;
  }
  return told.join(" ");
}

export function fromNow(instant, moment = now.value) {
  const seconds = (new Date(instant) - moment) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  const size = Math.abs(seconds);
  const length = size < 10 ? `${Math.round(size)}s` : span(size);
  return seconds > 0 ? `in ${length}` : `${length} ago`;
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

/** An instant in full, in the zone that the reader has chosen; `job` is the zone of the job that it is about. */
export function full(instant, job) {
  if (!instant) return "–";
  const tz = zone.value === "utc" ? "UTC" : zone.value === "job" && job ? job : LOCAL;
  return format(tz).format(new Date(instant));
}

export const clock = (instant, job) => full(instant, job).slice(11, 19);
export const seconds = (from, to) => (new Date(to) - new Date(from)) / 1000;
