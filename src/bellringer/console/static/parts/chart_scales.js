// How charts write their values, and the labels of their axes. value(one): a value with its unit; increments: possible distances between two
// labels; labels(ticks, increment): the labels, with as many decimals as tell them apart.
import { formatDuration } from "../lib/time.js";

const MINUTE = 60;
const HOUR = 3_600;
const DAY = 86_400;
const LONG_INCREMENTS = [10, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR,
  DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 90 * DAY, 365 * DAY]; // seconds

/** 1, 2 and 5 times each power of ten. */
const decimalIncrements = (from, to) => Array.from({ length: to - from + 1 }, (_, n) => [1, 2, 5].map((digit) => Number(`${digit}e${from + n}`))).flat();
const decimalsOf = (increment) => Math.max(0, Math.ceil(-Math.log10(increment) - 1e-9));

const count = (value) => Math.round(value).toLocaleString("en");

/** Small averages keep two decimals; a positive one is never written as 0. */
export function formatAverage(value) {
  if (value > 0 && value < 0.005) return "<0.01";
  return value >= 100 ? count(value) : String(+value.toFixed(value < 1 ? 2 : 1));
}

function secondsLabels(ticks, increment) {
  const top = Math.max(...ticks);
  const label = top < 1 ? (tick) => `${(tick * 1000).toFixed(decimalsOf(increment * 1000))}ms` : top < MINUTE ? (tick) => `${tick.toFixed(decimalsOf(increment))}s` : formatDuration;
  return ticks.map((tick) => (tick === 0 ? "0" : label(tick)));
}

const secondsIncrements = [...decimalIncrements(-6, 0), ...LONG_INCREMENTS];

export const COUNT = { value: count, increments: decimalIncrements(0, 12), labels: (ticks) => ticks.map(count) };
// least: the smallest top of the axis, so that tiny values do not look like peaks.
export const AVERAGE = { value: formatAverage, least: 1, increments: decimalIncrements(-4, 12),
  labels: (ticks, increment) => ticks.map((tick) => (tick === 0 ? "0" : tick.toLocaleString("en", { minimumFractionDigits: decimalsOf(increment), maximumFractionDigits: decimalsOf(increment) }))) };
export const SECONDS = { value: formatDuration, increments: secondsIncrements, labels: secondsLabels };
export const MILLISECONDS = { value: (value) => formatDuration(value / 1000), increments: secondsIncrements.map((one) => Number((one * 1000).toPrecision(6))),
  labels: (ticks, increment) => secondsLabels(ticks.map((tick) => tick / 1000), increment / 1000) };
