// Links to the page as it is shown. Relative times in the query become instants, so that the link shows the same data tomorrow.
import { query, route, address } from "../lib/router.js";

const AGO = /^(\d+)(s|m|h|d|w)$/;
const SECONDS = { s: 1, m: 60, h: 3_600, d: 86_400, w: 604_800 };

const instantOf = (ms) => new Date(ms).toISOString().replace(/\.\d+Z$/, "Z");

/** An instant in place of a duration such as `6h`, which means that long ago; other values stay. */
export function pinTime(value, moment = Date.now()) {
  const found = AGO.exec(value ?? "");
  return found ? instantOf(moment - Number(found[1]) * SECONDS[found[2]] * 1000) : value;
}

/** The address of the page. ago: query parameters that hold a time, which may be relative; `terms`: parameters that the page adds to make its times absolute. */
export function shareAddress({ ago = ["from", "to", "since", "until"], terms = {} } = {}) {
  const all = { ...Object.fromEntries(query.peek()), ...terms };
  for (const name of ago) if (all[name]) all[name] = pinTime(all[name]);
  return new URL(address(route.peek().path, all), location.origin).href;
}
