// A year of a job, one square per day: runs, failures, gaps and upcoming fires. The table below shows the same data.
import { html, useEffect, useRef } from "../lib/html.js";
import { Icon } from "../lib/icons.js";

const DAY = 86_400_000;
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const WEEKDAYS = ["Mon", "", "Wed", "", "Fri", "", ""]; // the labels of rows; one of two, so that they are not crowded
const LABELS = { runs: "Runs", failed: "Failed", gaps: "Without a run", coming: "Upcoming" };
const NONE = { runs: 0, failed: 0, gaps: 0, coming: 0, more: false };

const iso = (at) => new Date(at).toISOString().slice(0, 10);
const level = (count) => Math.min(4, Math.ceil(Math.log10(count + 1) * 1.5)); // logarithmic, so that jobs that run every second and jobs that run daily are both visible

/** Sign, tone and level of a day. */
function look(day) {
  if (day.failed) return [html`<${Icon} name="cross" />`, "bad", 4];
  if (day.runs) return ["", "good", level(day.runs)];
  if (day.gaps) return ["–", "warn", 3];
  if (day.coming) return ["·", "busy", level(day.coming)];
  return ["", "mute", 0];
}

const say = (number, word) => number && `${number.toLocaleString("en")} ${word}`;
function words(day) {
  const all = [say(day.runs, day.more ? "runs or more" : "runs"), say(day.failed, "failed"), say(day.gaps, "without a run"), say(day.coming, "upcoming")];
  return all.filter(Boolean).join(", ") || "nothing";
}

/** of: the response of GET jobs/{id}/days. */
export function YearChart({ of }) {
  const frame = useRef(null);
  useEffect(() => {
    const today = frame.current.querySelector("[data-today]"); // where the year does not fit, today is in the middle
    if (today) frame.current.scrollLeft = today.offsetLeft - frame.current.clientWidth / 2;
  }, [of.year]);
  const now = iso(Date.now());
  const known = new Map(of.days.map((one) => [one.day, one]));
  const first = Date.UTC(of.year, 0, 1);
  const count = Math.round((Date.UTC(of.year + 1, 0, 1) - first) / DAY);
  const days = Array.from({ length: count }, (_, n) => ({ ...NONE, day: iso(first + n * DAY), ...known.get(iso(first + n * DAY)) }));
  const ahead = (new Date(first).getUTCDay() + 6) % 7; // weeks begin on Monday
  const months = MONTHS.map((name, n) => ({ name, ...sum(days.filter((one) => Number(one.day.slice(5, 7)) === n + 1)) }));
  const all = sum(days);
  return html`<div class="year" ref=${frame} tabindex="0" role="img" aria-label=${`${of.year}: ${words(all)}`}>
      <div class="months" aria-hidden="true">${MONTHS.map((name, n) => html`<span
        style=${{ gridColumn: String(Math.floor((ahead + (Date.UTC(of.year, n, 1) - first) / DAY) / 7) + 2) }}>${name}</span>`)}</div>
      <div class="days" aria-hidden="true">${WEEKDAYS.map((name, n) => html`<span class="weekday" style=${{ gridRow: String(n + 1) }}>${name}</span>`)}${days.map((one, n) => {
        const [sign, tone, strength] = look(one);
        return html`<span key=${one.day} class="day tone-${tone} level-${strength}" data-today=${one.day === now ? "" : undefined}
          style=${{ gridRow: String(((ahead + n) % 7) + 1), gridColumn: String(Math.floor((ahead + n) / 7) + 2) }} title=${`${one.day}: ${words(one)}`}>${sign}</span>`;
      })}</div>
    </div>
    <p class="legend mute" aria-hidden="true"><span class="key"><span class="day tone-good level-1"></span><span class="day tone-good level-4"></span> few to many runs</span><span class="key"><span
      class="day tone-bad level-4"><${Icon} name="cross" /></span> some failed</span><span class="key"><span class="day tone-warn level-3">–</span> no run: missed, paused or skipped</span><span
      class="key"><span class="day tone-busy level-2">·</span> upcoming</span></p>
    <details><summary>By month</summary><div class="table rows" role="group" aria-label=${`${of.year} by month`} tabindex="0"><table><caption class="unseen">${of.year} by month</caption>
      <thead><tr><th scope="col">Month</th>${Object.values(LABELS).map((name) => html`<th scope="col" class="number">${name}</th>`)}</tr>
        </thead>
      <tbody>${months.map((one) => html`<tr key=${one.name}><th scope="row">${one.name}</th>
        ${Object.keys(LABELS).map((name) => html`<td class="number" data-label=${LABELS[name]}>
        ${one[name].toLocaleString("en")}${name === "runs" && one.more ? "+" : ""}</td>`)}</tr>`)}</tbody></table></div></details>`;
}

function sum(days) {
  const total = { ...NONE };
  for (const one of days) {
    for (const name of Object.keys(LABELS)) total[name] += Number(one[name] ?? 0);
    total.more ||= one.more ?? false;
  }
  return total;
}
