// The calendar: named jobs at their times, by month, week or day; a list of days on narrow screens.
import { html, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { get, part } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { setQuery } from "../lib/router.js";
import { now } from "../lib/time.js";
import { formatDate, wallClock } from "../lib/zoned.js";
import { useData } from "../lib/page_data.js";
import { ErrorMessage, Link } from "./elements.js";
import { bandsOf, hoursOf } from "./agenda_model.js";

const MAX_ENTRIES = 200; // of an expanded cell

const number = (count) => count.toLocaleString("en");
export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

/** What became of an entry: its class, icon and words; nothing for the future and where it is not known. */
export function outcomeOf({ runs, failed }) {
  if (failed > 0) return { of: "failed", icon: "cross", text: runs === 1 ? "failed" : `${number(failed)} failed` };
  if (runs > 0) return { of: "succeeded", icon: "check", text: "no failure" };
  return runs === 0 ? { of: "none", icon: "minus", text: "no run" } : { of: "upcoming" };
}

/** A job at its time: the first occurrence in the cell, and how many there are. */
function Entry({ entry, tz, focusable }) {
  const { time } = wallClock(entry.at, tz);
  const { of, icon, text } = outcomeOf(entry);
  const title = `${time} ${entry.job}${entry.times > 1 ? `, ${number(entry.times)} times, the first at ${time}` : ""}${text ? `: ${text}` : ""}`;
  return html`<li><${Link} to=${`jobs/${part(entry.job_id)}`} class="event is-${of}" title=${title} tabindex=${focusable ? 0 : -1}>
    <time datetime=${entry.at}>${time}</time> <span class="name">${entry.job}</span>${entry.times > 1 && html` <span class="times">×${number(entry.times)}</span>`}${icon
      && html` <span class="outcome"><${Icon} name=${icon} /><span class="unseen">${text}</span></span>`}<//></li>`;
}

/** The entries of cells, the first `most` of them until they are expanded. `without`: ids of jobs that are listed elsewhere. */
function Entries({ cells, tz, most, focusable, label, filters, without }) {
  const [open, setOpen] = useState(false);
  const listed = cells.flatMap((cell) => cell.entries);
  const jobs = cells.reduce((sum, cell) => sum + cell.jobs, 0);
  const shown = listed.slice(0, most);
  if (open) return html`<${AllEntries} cells=${cells} tz=${tz} focusable=${focusable} filters=${filters} without=${without} close=${() => setOpen(false)} />`;
  return html`${shown.length > 0 && html`<ul class="events">${shown.map((entry) => html`<${Entry} key=${`${entry.job_id} ${entry.at}`} entry=${entry} tz=${tz} focusable=${focusable} />`)}</ul>`}
    ${jobs > shown.length && html`<button type="button" class="quiet more-events" tabindex=${focusable ? 0 : -1} aria-expanded="false" aria-label=${`${number(jobs - shown.length)} more jobs, ${label}`}
      onClick=${() => setOpen(true)}>+${number(jobs - shown.length)} more</button>`}`;
}

function AllEntries({ cells, tz, focusable, filters, without = new Set(), close }) {
  const [first, last] = [cells[0], cells.at(-1)];
  const found = useData((stop) => get("calendar", { ...filters, tz, from: first.from, to: last.to, cell: "day", limit: MAX_ENTRIES }, stop), [first.from, last.to, JSON.stringify(filters)], { once: true });
  const all = (found.data?.cells ?? []).flatMap((cell) => cell.entries);
  const entries = all.filter((entry) => !without.has(entry.job_id));
  const jobs = (found.data?.cells ?? []).reduce((sum, cell) => sum + cell.jobs, 0) - (all.length - entries.length);
  return html`<${ErrorMessage} error=${found.error} />
    <ul class="events all" aria-busy=${found.busy && !found.data ? "true" : undefined}>${(found.data ? entries : cells.flatMap((cell) => cell.entries)).map((entry) => html`<${Entry} key=${`${entry.job_id} ${entry.at}`} entry=${entry} tz=${tz} focusable=${focusable} />`)}</ul>
    ${jobs > entries.length && html`<p class="mute">and ${plural(jobs - entries.length, "more job")}</p>`}
    <button type="button" class="quiet more-events" tabindex=${focusable ? 0 : -1} aria-expanded="true" onClick=${close}>Show fewer</button>`;
}

/** What is special about a day: holidays, freezes, and changes of the clocks. */
export function Notes({ day }) {
  return html`${day.holidays.map((name) => html`<span key=${name} class="note holiday" title=${`A day off in the calendar ${name}`}><${Icon} name="flag" /> <span class="unseen">day off in </span>${name}</span>`)}
    ${day.clock_changes.map((change) => html`<span key=${change.at} class="note clocks"><${Icon} name=${change.seconds > 0 ? "dst-gap" : "dst-fold"} /> ${change.text}</span>`)}
    ${day.freezes.map((freeze) => html`<span key=${freeze.freeze_id} class="note freeze" title=${freezeText(freeze)}><${Icon} name="snow" /> <span class="unseen">freeze </span>${freeze.name}</span>`)}`;
}

const freezeText = ({ name, tags }) => `Freeze ${name}: ${tags.length ? `jobs with the tag ${tags.join(" or ")} do not start` : "no job starts"}`;

/** Jobs that repeat all day long, which would fill each hour: a band over the days on which they repeat, with the failures of each day. */
function Bands({ bands, days }) {
  const more = Math.max(0, ...days.map((day) => day.repeats.jobs - day.repeats.items.length));
  return html`<ul class="bands">${bands.map(({ job_id, job, first, last, times, failed }) => html`<li key=${`${job_id} ${first}`}>
      <${Link} to=${`jobs/${part(job_id)}`} class="event repeats" style=${{ gridColumn: `${first + 1} / ${last + 2}` }}><${Icon} name="retry" /> <span class="name">${job}</span>
        <span class="times">×${number(times)}${last > first ? " a day" : ""}</span><//>
      ${failed.map((count, n) => count > 0 && html`<span key=${n} class="failures" style=${{ gridColumn: first + n + 1 }}><${Icon} name="cross" />${number(count)} failed</span>`)}</li>`)}
    ${more > 0 && html`<li class="mute hidden-fires">+${number(more)} more</li>`}</ul>`;
}

/** How many jobs repeat all day long, in a line; with their names if it is opened. */
function RepeatsLine({ day, opens = false }) {
  const { jobs, items } = day.repeats;
  if (!jobs) return null;
  const failed = items.reduce((sum, one) => sum + one.failed, 0);
  const line = html`<${Icon} name="retry" /> ${number(jobs)}${opens ? jobs === 1 ? " job repeats" : " jobs repeat" : html`<span class="unseen"> jobs repeat</span>`} all day${failed > 0
    && html` <span class="failures"><${Icon} name="cross" />${number(failed)} failed</span>`}`;
  if (!opens) return html`<p class="mute hidden-fires" title=${items.map((one) => `${one.job} ×${number(one.times)}`).join("\n")}>${line}</p>`;
  return html`<details class="hidden-fires"><summary>${line}</summary><${Bands} bands=${bandsOf([day])} days=${[day]} /></details>`;
}

const Hidden = ({ day }) => day.hidden > 0 && html`<p class="mute hidden-fires" title="Occurrences of jobs that are not among those named">+${number(day.hidden)} of other jobs</p>`;

const dayClass = (day) => ["agenda-day", day.isToday && "today", day.isPast && "past", day.isWeekend && "weekend", day.holidays.length && "off", day.freezes.length && "frozen"].filter(Boolean).join(" ");
const longDate = (date) => formatDate(date, { weekday: "long", day: "numeric", month: "long" });
const dayLabel = (day) => [longDate(day.date), day.isToday && "today", plural(day.fires ?? day.listed, "occurrence"), ...day.holidays.map((name) => `day off in ${name}`),
  ...day.clock_changes.map((change) => change.text), ...day.freezes.map((freeze) => `freeze ${freeze.name}`)].filter(Boolean).join(", ");

/** Arrow keys move between cells; the entries of the focused cell are in the tab order. turn(-1 or 1): shows the previous or next period. */
function useGrid(rows, columns, usual, turn) {
  const [at, setAt] = useState(usual);
  const grid = useRef(null);
  const moved = useRef(false);
  useLayoutEffect(() => { // before the next key arrives
    if (moved.current) grid.current?.querySelector(`[data-place="${at.row}-${at.column}"]`)?.focus();
    moved.current = false;
  }, [at.row, at.column]);
  function press(event) {
    if (event.target.getAttribute("role") !== "gridcell") {
      if (event.key === "Escape") event.target.closest("[role=gridcell]")?.focus();
      return;
    }
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -columns], End: [0, columns] }[event.key] ?? [0, 0];
    if (event.key === "PageUp" || event.key === "PageDown") turn(event.key === "PageUp" ? -1 : 1);
    else if (event.key === "Enter") event.target.querySelector("a, button")?.focus();
    else if (!down && !right) return;
    event.preventDefault();
    const next = { row: Math.min(Math.max(at.row + down, 0), rows - 1), column: Math.min(Math.max(at.column + right, 0), columns - 1) };
    if (next.row === at.row && next.column === at.column) return;
    moved.current = true;
    setAt(next);
  }
  const focused = (event) => {
    const place = event.target.closest("[data-place]")?.dataset.place?.split("-").map(Number);
    if (place && (place[0] !== at.row || place[1] !== at.column)) setAt({ row: place[0], column: place[1] });
  };
  const cell = (row, column) => ({ "data-place": `${row}-${column}`, role: "gridcell", tabindex: row === at.row && column === at.column ? 0 : -1 });
  return { grid, press, focused, cell, isAt: (row, column) => row === at.row && column === at.column };
}

export function MonthGrid({ days, month, tz, filters, turn }) {
  const weeks = Array.from({ length: days.length / 7 }, (_, n) => days.slice(n * 7, n * 7 + 7));
  const today = Math.max(days.findIndex((day) => day.isToday), days.findIndex((day) => day.date.startsWith(month)) * !days.some((day) => day.isToday));
  const { grid, press, focused, cell, isAt } = useGrid(weeks.length, 7, { row: Math.floor(today / 7), column: today % 7 }, turn);
  return html`<div class="agenda month" role="grid" aria-label="Calendar by day; arrow keys move, Enter goes to the jobs of a day" ref=${grid} onKeyDown=${press} onFocusIn=${focused}>
    <div role="row" class="weekdays">${weeks[0].map((day) => html`<span role="columnheader" key=${day.date}>${formatDate(day.date, { weekday: "short" })}</span>`)}</div>
    ${weeks.map((week, row) => html`<div role="row" class="week" key=${week[0].date}>${week.map((day, column) => html`<div key=${day.date} ...${cell(row, column)}
      class="${dayClass(day)} ${day.date.startsWith(month) ? "" : "other-month"}" aria-label=${dayLabel(day)} aria-current=${day.isToday ? "date" : undefined}>
      <p class="date"><button type="button" class="quiet" tabindex=${isAt(row, column) ? 0 : -1} aria-label=${`Show ${longDate(day.date)}`}
        onClick=${() => setQuery({ view: "day", date: day.date })}>${day.date.endsWith("-01") ? formatDate(day.date, { day: "numeric", month: "short" }) : Number(day.date.slice(8))}</button></p>
      <${Notes} day=${day} /><${Entries} cells=${day.cells} tz=${tz} most=${3} focusable=${isAt(row, column)} label=${longDate(day.date)} filters=${filters} /><${RepeatsLine} day=${day} /><${Hidden} day=${day} />
    </div>`)}</div>`)}
  </div>`;
}

/** Hours by days. */
export function TimeGrid({ data, days, filters, turn }) {
  const { tz } = data;
  const hours = hoursOf(data, days);
  const clock = wallClock(now.value, tz);
  const column = Math.max(days.findIndex((day) => day.isToday), 0);
  const { grid, press, focused, cell, isAt } = useGrid(24, days.length, { row: days.some((day) => day.isToday) ? clock.hour : 0, column }, turn);
  const bands = bandsOf(days);
  return html`<div class="agenda hours" role="grid" aria-label="Calendar by hour; arrow keys move, Enter goes to the jobs of an hour" ref=${grid} onKeyDown=${press}
      onFocusIn=${focused} style=${{ "--days": String(days.length) }}>
    <div role="row" class="heads"><span role="columnheader"><span class="unseen">Hour</span></span>${days.map((day) => html`<div role="columnheader" key=${day.date} class=${dayClass(day)} aria-current=${day.isToday ? "date" : undefined}>
      <p class="date"><button type="button" class="quiet" aria-label=${`Show ${longDate(day.date)}`} onClick=${() => setQuery({ view: "day", date: day.date })}>
        ${formatDate(day.date, { weekday: "short" })} <strong>${Number(day.date.slice(8))}</strong></button>
        ${(day.fires ?? day.listed) > 0 && html`<span class="mute">${number(day.fires ?? day.listed)}<span class="unseen"> occurrences</span></span>`}</p>
      <${Notes} day=${day} /></div>`)}</div>
    ${bands.length > 0 && html`<div role="row" class="all-day"><span role="rowheader">all day</span><div role="gridcell" aria-colspan=${days.length} aria-label="Jobs that repeat all day"><${Bands} bands=${bands} days=${days} /></div></div>`}
    ${hours.map((places, hour) => html`<div role="row" class="hour ${places.some((place) => place.cells.length) ? "" : "empty-hour"}" key=${hour}><span role="rowheader">${String(hour).padStart(2, "0")}:00</span>
      ${places.map((place, n) => html`<div key=${place.day.date} ...${cell(hour, n)} aria-label=${hourLabel(place, hour)}
        class="${dayClass({ ...place.day, freezes: place.freezes })} ${place.spans.length ? "" : "skipped"} ${place.day.isToday && hour < clock.hour ? "past" : ""}">
        ${place.day.isToday && hour === clock.hour && html`<span class="now" style=${{ "--minute": String(clock.minute) }} title=${`Now: ${clock.time}`}></span>`}
        ${place.spans.length === 0 ? html`<span class="mute no-hour">no such hour</span>` : html`<${Entries} cells=${place.cells} tz=${tz} most=${3} focusable=${isAt(hour, n)} label=${hourLabel(place, hour)} filters=${filters} without=${new Set(place.day.repeats.items.map((one) => one.job_id))} />`}
      </div>`)}</div>`)}
  </div>${days.some((day) => day.hidden) && html`<p class="mute">The figures at the top of the days also count ${number(days.reduce((sum, day) => sum + day.hidden, 0))} occurrences of jobs that are not named here.</p>`}`;
}

function hourLabel({ day, spans, cells, freezes }, hour) {
  const jobs = cells.reduce((sum, cell) => sum + cell.jobs, 0);
  const what = !spans.length ? "clocks skip this hour" : [jobs ? plural(jobs, "job") : "nothing", spans.length > 1 && "this hour comes twice", ...freezes.map((freeze) => `freeze ${freeze.name}`)].filter(Boolean).join(", ");
  return `${longDate(day.date)}, ${String(hour).padStart(2, "0")}:00, ${what}`;
}

const hasSomething = (day) => day.cells.length || day.repeats.jobs || day.hidden || day.holidays.length || day.freezes.length || day.clock_changes.length;

const DayItem = ({ day, tz, most, filters }) => html`<li class=${dayClass(day)} aria-current=${day.isToday ? "date" : undefined}>
  <h2>${day.isToday && html`<span class="state tone-busy">Today</span> `}${longDate(day.date)}</h2>
  <${Notes} day=${day} />${day.cells.length ? html`<${Entries} cells=${day.cells} tz=${tz} most=${most} focusable=${true} label=${longDate(day.date)} filters=${filters} />`
    : !day.repeats.jobs && html`<p class="mute">No jobs.</p>`}<${RepeatsLine} day=${day} opens=${true} /><${Hidden} day=${day} /></li>`;

/** The days below each other, from today on; the days before are folded. */
export function DayList({ days, ...more }) {
  const isEarlier = (day) => day.isPast && days.some((one) => one.isToday);
  const list = (shown) => html`<ol class="agenda days">${shown.map((day) => html`<${DayItem} key=${day.date} day=${day} ...${more} />`)}</ol>`;
  const [earlier, shown] = [days.filter((day) => isEarlier(day) && hasSomething(day)), days.filter((day) => !isEarlier(day) && (day.isToday || hasSomething(day)))];
  return html`${earlier.length > 0 && html`<details class="earlier"><summary>Earlier: ${formatDate(earlier[0].date, { weekday: "long", day: "numeric" })} to yesterday</summary>${list(earlier)}</details>`}${list(shown)}`;
}

/** The dots of a day: what its entries became, or how many runs failed. */
function Dots({ day }) {
  const entries = day.cells.flatMap((cell) => cell.entries);
  const failed = [...entries, ...day.repeats.items].reduce((sum, one) => sum + one.failed, 0);
  if (failed > 0) return html`<span class="dots failures"><${Icon} name="cross" />${failed > MAX_SHOWN_FAILED ? `${MAX_SHOWN_FAILED}+` : failed}</span>`;
  const kinds = [...new Set(entries.map((entry) => outcomeOf(entry).of))];
  return html`<span class="dots">${kinds.map((of) => html`<span key=${of} class="dot is-${of}"></span>`)}</span>`;
}

const MAX_SHOWN_FAILED = 99;

/** A month on a narrow screen: each day with what became of its jobs, and the jobs of one day below. */
export function SmallMonth({ days, month, date, ...more }) {
  const chosen = days.find((day) => day.date === date) ?? days.find((day) => day.date.startsWith(month));
  const weekdays = days.slice(0, 7).map((day) => formatDate(day.date, { weekday: "short" }));
  return html`<div class="agenda small-month" role="group" aria-label="Days; the jobs of the chosen day are below">
      ${weekdays.map((name) => html`<span class="weekday" aria-hidden="true" key=${name}>${name}</span>`)}
      ${days.map((day) => html`<button type="button" key=${day.date} class="${dayClass(day)} ${day.date.startsWith(month) ? "" : "other-month"}" aria-label=${dayLabel(day)}
        aria-pressed=${day === chosen} onClick=${() => setQuery({ date: day.date })}>${Number(day.date.slice(8))}<${Dots} day=${day} /></button>`)}
    </div><ol class="agenda days"><${DayItem} key=${chosen.date} day=${chosen} ...${more} /></ol>`;
}

/** What the colors of entries mean. */
export const Legend = () => html`<p class="mute agenda-legend">${[["succeeded", "ran"], ["failed", "failed"], ["none", "no run"], ["upcoming", "upcoming"]].map(([of, text]) => html`<span key=${of}><span class="dot is-${of}"></span> ${text}</span>`)}</p>`;
