// Ways to write a schedule without knowing cron: common schedules with their times, and a description in English, which the server reads.
import { html, useEffect, useId, useRef, useState } from "../lib/html.js";
import { request } from "../lib/api.js";
import { Field } from "./field.js";
import { Fires, Meaning } from "./schedule.js";

const TYPING_PAUSE_MS = 500; // milliseconds without typing before the text is read
const SHOWN_FIRES = 3;
const DAYS = { 1: "Monday", 2: "Tuesday", 3: "Wednesday", 4: "Thursday", 5: "Friday", 6: "Saturday", 0: "Sunday" };

// Each preset writes an expression; `reads` recognizes what it wrote. The groups of `reads` are in the order of `of`.
const PRESETS = {
  minutes: { label: "every 5 minutes", of: [], write: () => "*/5 * * * *", reads: /^\*\/5 \* \* \* \*$/ },
  quarters: { label: "every 15 minutes", of: [], write: () => "*/15 * * * *", reads: /^\*\/15 \* \* \* \*$/ },
  hourly: { label: "every hour, at minute…", of: ["minute"], write: ({ minute }) => `${minute} * * * *`, reads: /^(\d+) \* \* \* \*$/ },
  daily: { label: "every day at…", of: ["minute", "hour"], write: ({ minute, hour }) => `${minute} ${hour} * * *`, reads: /^(\d+) (\d+) \* \* \*$/ },
  weekdays: { label: "Monday to Friday at…", of: ["minute", "hour"], write: ({ minute, hour }) => `${minute} ${hour} * * 1-5`, reads: /^(\d+) (\d+) \* \* 1-5$/ },
  weekly: {
    label: "every week on…", of: ["minute", "hour", "weekday"],
    write: ({ minute, hour, weekday }) => `${minute} ${hour} * * ${weekday}`, reads: /^(\d+) (\d+) \* \* ([0-6])$/,
  },
  monthly: {
    label: "every month on day…", of: ["minute", "hour", "day"],
    write: ({ minute, hour, day }) => `${minute} ${hour} ${day} * *`, reads: /^(\d+) (\d+) (\d+) \* \*$/,
  },
  month_end: { label: "last day of the month at…", of: ["minute", "hour"], write: ({ minute, hour }) => `${minute} ${hour} L * *`, reads: /^(\d+) (\d+) L \* \*$/ },
  quarterly: { label: "first day of each quarter at…", of: ["minute", "hour"], write: ({ minute, hour }) => `${minute} ${hour} 1 1,4,7,10 *`, reads: /^(\d+) (\d+) 1 1,4,7,10 \*$/ },
};
const USUAL = { minute: "0", hour: "9", weekday: "1", day: "1" };

/** The preset that would write this expression, with its values. */
function presetOf(cron) {
  const text = cron.trim().replace(/\s+/g, " ");
  for (const [name, { of, reads }] of Object.entries(PRESETS)) {
    const match = reads.exec(text);
    const values = match && Object.fromEntries(of.map((one, n) => [one, String(Number(match[n + 1]))]));
    if (values && Number(values.minute ?? 0) < 60 && Number(values.hour ?? 0) < 24 && Number(values.day ?? 1) <= 31 && values.day !== "0") return { name, values };
  }
  return { name: "", values: {} };
}

const two = (number) => String(number).padStart(2, "0");

/** A select of common cron schedules with fields for their times. It follows the expression when that is edited by hand. */
export function CronPresets({ schedule, set }) {
  if (schedule.dialect || schedule.seconds) return null; // presets are written as crontab
  const { name, values } = presetOf(schedule.cron);
  const all = { ...USUAL, ...values };
  const choose = (next) => next && set(PRESETS[next].write(all));
  const change = (more) => set(PRESETS[name].write({ ...all, ...more }));
  const asks = (one) => PRESETS[name]?.of.includes(one);
  const timed = (event) => {
    const [hour, minute] = event.target.value.split(":");
    if (minute !== undefined) change({ hour: String(Number(hour)), minute: String(Number(minute)) });
  };
  const counted = (one, least, most) => (event) => {
    const number = Number(event.target.value);
    if (event.target.value !== "" && Number.isInteger(number) && number >= least && number <= most) change({ [one]: String(number) });
  };
  return html`<${Field} label="Common schedules">${(named) => html`<select ...${named} value=${name} onChange=${(event) => choose(event.target.value)}>
      <option value="" selected=${name === ""}>${schedule.cron.trim() ? "custom expression" : "choose…"}</option>
      ${Object.entries(PRESETS).map(([one, { label }]) => html`<option key=${one} value=${one} selected=${one === name}>${label}</option>`)}
    </select>`}<//>
    ${asks("weekday") && html`<${Field} label="Weekday">${(named) => html`<select ...${named} value=${all.weekday} onChange=${(event) => change({ weekday: event.target.value })}>
      ${["1", "2", "3", "4", "5", "6", "0"].map((one) => html`<option key=${one} value=${one} selected=${one === all.weekday}>${DAYS[one]}</option>`)}</select>`}<//>`}
    ${asks("day") && html`<${Field} label="Day of the month" hint=${Number(all.day) > 28 ? "months without this day are skipped" : undefined}>${(named) => html`<input ...${named}
      type="number" min="1" max="31" value=${all.day} onInput=${counted("day", 1, 31)} />`}<//>`}
    ${asks("hour") && html`<${Field} label="Time of day">${(named) => html`<input ...${named} type="time" value=${`${two(all.hour)}:${two(all.minute)}`} onInput=${timed} />`}<//>`}
    ${asks("minute") && !asks("hour") && html`<${Field} label="Minute">${(named) => html`<input ...${named} type="number" min="0" max="59" value=${all.minute}
      onInput=${counted("minute", 0, 59)} />`}<//>`}`;
}

/** Reads the text after typing pauses. Returns {response, error, busy}. */
function useReading(text, zone) {
  const [reading, setReading] = useState({ response: null, error: null, busy: false });
  useEffect(() => {
    const stop = new AbortController();
    if (!text) return void setReading({ response: null, error: null, busy: false });
    setReading((old) => ({ ...old, busy: true }));
    const timer = setTimeout(async () => {
      try {
        const { data } = await request("POST", "schedules/parse", { body: { text, n: SHOWN_FIRES, ...(zone && { tz: zone }) }, signal: stop.signal });
        setReading({ response: data, error: null, busy: false });
      } catch (error) {
        if (!stop.signal.aborted) setReading({ response: null, error, busy: false });
      }
    }, TYPING_PAUSE_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [text, zone]);
  return reading;
}

/** A field for a schedule in English. `zone`: the time zone if the text names none; `use(schedule)` takes the schedule over into the form. */
export function ScheduleInEnglish({ zone, use }) {
  const [text, setText] = useState("");
  const [used, setUsed] = useState("");
  const { response, error, busy } = useReading(text.trim() === used ? "" : text.trim(), zone.trim());
  const field = useRef(null);
  const id = useId();
  const isWrongZone = error?.errors?.some((one) => one.pointer === "/tz");
  function take() {
    if (!response) return;
    use(response.schedule);
    setUsed(text.trim());
    field.current?.focus();
  }
  function pressed(event) {
    if (event.key !== "Enter") return;
    event.preventDefault(); // Enter takes the schedule over; it does not submit the form
    take();
  }
  const faults = !error ? [] : isWrongZone ? [{ detail: "the time zone below is not valid" }] : error.errors?.length ? error.errors : [{ detail: error.message }];
  return html`<div class="in-english" aria-busy=${busy}>
    <${Field} label="Describe it in English" wide=${true} faults=${faults} hint=${used && text.trim() === used ? "The fields below now have this schedule." : undefined}>
      ${(named) => html`<input ref=${field} ...${named} type="text" value=${text} placeholder="e.g. every weekday at 9:00 in Berlin" autocomplete="off" spellcheck=${false}
        aria-controls=${id} onInput=${(event) => (setUsed(""), setText(event.target.value))} onKeyDown=${pressed} />`}<//>
    <div id=${id} aria-live="polite">${response && html`<div class="understood">
      <${Meaning} of=${response} />
      <${Fires} fires=${response.fires} zone=${response.schedule.tz} brief=${true} caption="Next run times of the description" />
      <div class="actions"><button type="button" class="main" onClick=${take}>Use this schedule</button></div></div>`}</div>
  </div>`;
}
