// Dates and wall-clock times in a given time zone. A date is a text such as 2026-11-18.
import { zone } from "./preferences.js";
import { LOCAL } from "./time.js";

const DAY = 86_400_000;
const formats = new Map();

function format(tz) {
  if (!formats.has(tz)) {
    const parts = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
    formats.set(tz, new Intl.DateTimeFormat("sv-SE", { ...parts, timeZone: tz }));
  }
  return formats.get(tz);
}

/** The date and the time that clocks of the zone show at an instant. */
export function wallClock(instant, tz) {
  const [date, time] = format(tz).format(new Date(instant)).split(" ");
  return { date, time, hour: Number(time.slice(0, 2)), minute: Number(time.slice(3)) };
}

export function isZone(tz) {
  try {
    format(tz);
    return true;
  } catch {
    return false;
  }
}

/** The zone that the user has chosen for the console. */
export const usualZone = () => (zone.value === "utc" ? "UTC" : LOCAL);

export const zoneNames = () => [...new Set(["UTC", LOCAL, ...(Intl.supportedValuesOf?.("timeZone") ?? [])])];

export const addDays = (date, days) => new Date(Date.parse(`${date}T00:00Z`) + days * DAY).toISOString().slice(0, 10);
export const weekday = (date) => (new Date(`${date}T00:00Z`).getUTCDay() + 6) % 7; // 0: Monday
export const isDate = (text) => /^\d{4}-\d{2}-\d{2}$/.test(text ?? "") && !Number.isNaN(Date.parse(`${text}T00:00Z`));

/** Adds months; the 31st becomes the last day of a shorter month. */
export function addMonths(date, months) {
  const [year, month, day] = date.split("-").map(Number);
  const last = new Date(Date.UTC(year, month + months, 0)).getUTCDate();
  return new Date(Date.UTC(year, month - 1 + months, Math.min(day, last))).toISOString().slice(0, 10);
}

const written = new Map();

/** Formats a date, for example with { weekday: "short", day: "numeric" }. */
export function formatDate(date, options) {
  const name = JSON.stringify(options);
  if (!written.has(name)) written.set(name, new Intl.DateTimeFormat("en-GB", { ...options, timeZone: "UTC" }));
  return written.get(name).format(new Date(`${date}T00:00Z`));
}
