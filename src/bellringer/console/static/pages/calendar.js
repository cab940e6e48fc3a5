// Calendar: when which jobs run, by day, week or month; and the expected load.
import { html, useEffect, useState } from "../lib/html.js";
import { get, may, part } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { pulse, state } from "../lib/live.js";
import { useData } from "../lib/page_data.js";
import { usePolling } from "../lib/polling.js";
import { fetchPages } from "../lib/pages.js";
import { query, setQuery } from "../lib/router.js";
import { useShortcuts } from "../lib/shortcuts.js";
import { LOCAL, now } from "../lib/time.js";
import { addDays, isDate, isZone, usualZone, wallClock, zoneNames } from "../lib/zoned.js";
import { DayList, Legend, MonthGrid, SmallMonth, TimeGrid, plural } from "../parts/agenda.js";
import { DayLanes } from "../parts/agenda_day.js";
import { VIEWS, daysOf, spanOf, step, titleOf } from "../parts/agenda_model.js";
import { Command } from "../parts/copyable_command.js";
import { CopyAs, Empty, Link, Loading, Tabs } from "../parts/elements.js";
import { Choice, Facet } from "../parts/filters.js";
import { LoadForecast } from "../parts/load_forecast.js";
import { Segments, segment } from "../parts/segmented_control.js";

const TABS = { calendar: "Jobs", load: "Load" };
const POLL_SECONDS = 300; // the schedules of jobs rarely change, and changes reload the page
const ENTRIES = { day: 40, week: 3, month: 3 }; // listed per cell …
const LISTED = { day: 100, week: 8, month: 8 }; // … and per day on narrow screens
const FREQUENT_SHOWN = 3;
const NARROW = matchMedia("(max-width: 48rem)");

export default function Calendar() {
  const tab = segment("tab", TABS, "calendar");
  return html`<header class="head"><h1>Calendar</h1></header>
    <${Tabs} tabs=${TABS} chosen=${tab} choose=${(next) => setQuery({ tab: next === "calendar" ? "" : next })} />
    ${tab === "load" ? html`<${LoadForecast} />` : html`<${JobCalendar} />`}`;
}

function useNarrow() {
  const [narrow, setNarrow] = useState(NARROW.matches);
  useEffect(() => {
    const changed = () => setNarrow(NARROW.matches);
    NARROW.addEventListener("change", changed);
    return () => NARROW.removeEventListener("change", changed);
  }, []);
  return narrow;
}

function JobCalendar() {
  const narrow = useNarrow();
  const view = segment("view", VIEWS, "week");
  const tz = isZone(query.value.get("tz") || usualZone()) ? query.value.get("tz") || usualZone() : "UTC";
  const today = wallClock(now.value, tz).date;
  const date = isDate(query.value.get("date")) ? query.value.get("date") : today;
  const { start, days } = spanOf(view, date);
  const filters = Object.fromEntries(["pool", "tag", "task"].map((name) => [name, query.value.get(name) || undefined]));
  const terms = { ...filters, tz, from: start, to: addDays(start, days), cell: view === "month" || (narrow && view === "week") ? "day" : "hour", limit: (narrow ? LISTED : ENTRIES)[view] };
  const found = useData((stop) => get("calendar", terms, stop), [JSON.stringify(terms)], { once: true });
  usePolling(found, POLL_SECONDS);
  const jobs = pulse.value.jobs;
  useEffect(() => {
    if (found.at && state.peek() !== "paused") found.reload();
  }, [jobs]);
  const turn = (by) => setQuery({ date: step(view, date, by) });
  useShortcuts({ "[": [`previous ${view}`, () => turn(-1)], "]": [`next ${view}`, () => turn(1)], T: ["today", () => setQuery({ date: "" })] }, "Calendar", [view, date]);
  const path = `calendar?${new URLSearchParams(Object.entries(terms).filter(([, value]) => value !== undefined))}`;
  return html`<div class="tools agenda-tools">
      <div class="turn"><button type="button" class="quiet icon" aria-label=${`Previous ${view}`} title=${`Previous ${view} ([)`} onClick=${() => turn(-1)}><${Icon} name="chevron-left" /></button>
        <button type="button" disabled=${date === today} onClick=${() => setQuery({ date: "" })}>Today</button>
        <button type="button" class="quiet icon" aria-label=${`Next ${view}`} title=${`Next ${view} (])`} onClick=${() => turn(1)}><${Icon} name="chevron-right" /></button></div>
      <h2 class="period" aria-live="polite">${titleOf(view, date)}</h2><span class="gap"></span>
      <${Segments} name="view" label="View" of=${VIEWS} usual="week" /></div>
    <div class="tools"><${Filters} tz=${tz} /><span class="gap"></span><${CopyAs} path=${path} /></div>
    <${Loading} of=${found} shape="page">${(data) => html`<${Content} data=${data} view=${view} date=${date} today=${today} narrow=${narrow} filters=${filters} turn=${turn} />`}<//>`;
}

function Filters({ tz }) {
  const pools = useData((stop) => get("pools", { limit: 200 }, stop), [], { once: true }).data?.items ?? [];
  const tasks = useData((stop) => fetchPages("tasks", {}, 200, stop), [], { once: true }).data?.items ?? [];
  const names = zoneNames();
  return html`<label class="choice"><span>Time zone</span><select value=${tz} onChange=${(event) => setQuery({ tz: event.target.value === usualZone() ? "" : event.target.value })}>
      ${(names.includes(tz) ? names : [tz, ...names]).map((name) => html`<option key=${name} value=${name} selected=${name === tz}>${name === LOCAL && name !== "UTC" ? `${name} (local)` : name}</option>`)}</select></label>
    <${Choice} name="pool" label="Pool" of=${Object.fromEntries(pools.map((pool) => [pool.name, pool.name]))} />
    <${Facet} name="tag" label="Tag" of=${[]} /><${Facet} name="task" label="Task" of=${tasks.map((task) => task.name)} />`;
}

function Content({ data, view, date, today, narrow, filters, turn }) {
  const month = date.slice(0, 7);
  const days = daysOf(data, today);
  const isEmpty = !data.cells.length && !data.frequent.jobs && !days.some((day) => day.repeats.jobs || day.hidden);
  const key = `${data.from} ${data.tz} ${data.cell}`;
  return html`<${Summary} data=${data} days=${days} view=${view} />
    ${isEmpty && !data.freezes.length && html`<${Nothing} view=${view} filtered=${Object.values(filters).some(Boolean)} />`}
    ${narrow && view === "month" ? html`<${SmallMonth} key=${key} days=${days} month=${month} date=${date} tz=${data.tz} most=${LISTED.month} filters=${filters} />`
      : narrow ? html`<${DayList} key=${key} days=${days} tz=${data.tz} most=${LISTED[view]} filters=${filters} />`
      : view === "day" ? html`<${DayLanes} key=${key} data=${data} day=${days[0]} />`
      : data.cell === "day" && days.length % 7 === 0 ? html`<${MonthGrid} key=${key} days=${days} month=${month} tz=${data.tz} filters=${filters} turn=${turn} />`
      : html`<${TimeGrid} key=${key} data=${data} days=${days} filters=${filters} turn=${turn} />`}
    ${!isEmpty && html`<${Legend} />`}`;
}

function Summary({ data, days, view }) {
  const total = days.reduce((sum, day) => sum + (day.fires ?? day.listed), 0);
  const { jobs, items } = data.frequent;
  const unknown = days.some((day) => day.fires === null);
  return html`<p class="agenda-sum"><strong>${plural(total, "occurrence")}</strong> ${{ day: days[0].isToday ? "today" : "on this day", week: "this week", month: `in the ${days.length / 7} weeks shown` }[view]}
      ${jobs > 0 && html` · <span class="frequent">${jobs === 1 ? "1 job runs" : `${jobs.toLocaleString("en")} jobs run`} more often than every minute:${" "}
        ${items.slice(0, FREQUENT_SHOWN).map((one, n) => html`${n > 0 && ", "}<${Link} to=${`jobs/${part(one.job_id)}`}>${one.job}<//>`)}${jobs > FREQUENT_SHOWN && html` and ${(jobs - FREQUENT_SHOWN).toLocaleString("en")} more`}</span>`}</p>
    ${data.truncated && html`<p class="mute"><${Icon} name="info" /> ${[data.jobs > 0 && !unknown && `Only the first ${data.jobs.toLocaleString("en")} jobs are named; the figures of the days count all jobs`,
      unknown && `Only the first ${data.jobs.toLocaleString("en")} matching jobs are shown; narrow the filter to see the others`,
      data.left_out > 0 && `${plural(data.left_out, "job")} could not be counted, because there are too many schedules`].filter(Boolean).join(". ")}.</p>`}`;
}

function Nothing({ view, filtered }) {
  if (filtered) return html`<${Empty} title="No matching jobs"><p>No active job with these filters runs in this ${view}.</p>
    <p><button type="button" onClick=${() => setQuery({ pool: "", tag: "", task: "" })}>Clear the filters</button></p><//>`;
  return html`<${Empty} title="Nothing runs in this ${view}"><p>Create a job with a schedule to see it here:</p>
    <p><${Command} text="bellringer jobs create nightly reports.build --cron '30 2 * * *' --tz Europe/Paris" /></p>
    ${may("editor") && html`<p><${Link} to="jobs/new" class="button">Create a job<//></p>`}<//>`;
}
