// Copies a link to the page as it is shown. Relative times in the query become instants, so that the link shows the same data tomorrow.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { query, route, address } from "../lib/router.js";
import { copy } from "./elements.js";

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

/** `terms`: an object, or a function that returns it when the link is copied. */
export function ShareButton({ ago, terms = {}, what = "page" }) {
  const [done, setDone] = useState(false);
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  async function take() {
    await copy(shareAddress({ ago, terms: typeof terms === "function" ? terms() : terms }));
    setDone(true);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setDone(false), 1500);
  }
  return html`<span class="share"><button type="button" class="quiet" title=${`Copy a link to this ${what}. Relative times become fixed times.`} onClick=${take}>
    <${Icon} name=${done ? "check" : "share"} /> ${done ? "Link copied" : "Share"}</button><span role="status" class="unseen">${done ? "Link copied" : ""}</span></span>`;
}
