// The metrics of a job: percentiles of duration and lateness with the learned baseline, attempts, and failures.
import { html } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { get } from "../lib/api.js";
import { useData } from "../lib/page_data.js";
import { setQuery, query } from "../lib/router.js";
import { formatDuration, formatTime, parseDuration } from "../lib/time.js";
import { SmallChart, ZoomReset, rangeOfZoom, zoomRange, zoomText } from "../parts/chart.js";
import { AVERAGE, COUNT, SECONDS } from "../parts/chart_scales.js";
import { CopyAs, Empty, Loading } from "../parts/elements.js";
import { pathOf } from "../parts/job_actions.js";
import { Segments, segment } from "../parts/segmented_control.js";

const RANGES = { "1h": "1 hour", "24h": "1 day", "7d": "7 days", "30d": "30 days", "90d": "90 days" };
const RANGE_SECONDS = { "1h": 3_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000, "90d": 7_776_000 };
const USUAL_RANGES = ["30d", "7d", "24h"]; // without a choice, the longest that the latest attempts fill well enough
const FILLED = 1 / 3; // share of a range
const FAR = 3; // a limit that is this many times as high as all durations is not drawn: it would flatten them

const retriesText = (retries) => `${count(retries)} ${retries === 1 ? "retry" : "retries"}`;
const count = (value) => Math.round(value).toLocaleString("en");
const share = (value) => `${+(value * 100).toFixed(value > 0.999 && value < 1 ? 3 : 1)}%`;
const unbroken = (text) => text.replace(/(\d) (m?s)\b/g, "$1\u00a0$2"); // a unit stays with its number
const duration = (text) => (text ? formatDuration(parseDuration(text)) : "–"); // the API rounds to milliseconds
const sum = (buckets, field) => buckets.reduce((total, one) => total + one[field], 0);
const known = (value) => value !== null && value !== undefined;

/** Skips on purpose (overlap, freeze, pause, calendar) are neither expected nor missed. */
function missedText({ missed, expected, more, uncounted }) {
  const gaps = uncounted ? `, and ${uncounted} gaps that were not counted` : "";
  return `${missed.toLocaleString("en")} of ${more ? "at least " : ""}${expected.toLocaleString("en")} occurrences${gaps}`;
}

/** The range that fits the latest attempts. */
function fittingRange({ since }) {
  const age = since ? (Date.now() - new Date(since)) / 1000 : 0;
  return USUAL_RANGES.find((range) => age >= RANGE_SECONDS[range] * FILLED) ?? USUAL_RANGES.at(-1);
}

/** Reads the chosen range, or the one that fits; a longer one if the zoom begins before it. */
async function readStats(path, chosen, stop) {
  const data = await get(path, { range: chosen ?? USUAL_RANGES.at(-1) }, stop);
  const fitting = fittingRange(data);
  const range = rangeOfZoom(chosen ?? fitting, RANGE_SECONDS);
  return { ...(range === data.series.range ? data : await get(path, { range }, stop)), fitting };
}

export function Metrics({ job }) {
  const chosen = segment("range", RANGES, null);
  const found = useData((stop) => readStats(`${pathOf(job)}/stats`, chosen, stop), [job.job_id, chosen, zoomRange()?.[0]]);
  return html`<${Loading} of=${found} shape="cards" rows=${4}>${(data) =>
    data.attempts === 0 && data.missed.missed === 0
      ? html`<${Empty} title="No attempts yet"><p>Metrics appear after the first run.</p><//>`
      : html`<${Content} job=${job} data=${data} range=${data.series.range} />`}<//>`;
}

function Content({ job, data, range }) {
  const { buckets, step } = data.series;
  const cut = buckets.some((one) => one.more);
  const shareTerms = () => {
    const [from, to] = zoomRange() ?? [Date.parse(buckets[0].at) / 1000, Date.parse(buckets.at(-1).at) / 1000 + step];
    return { range, zoom: zoomText(from, to) };
  };
  return html`<div class="tools"><${Segments} name="range" label="Range" of=${RANGES} usual=${data.fitting} clear=${["zoom"]} /><${ZoomReset} /><span class="gap"></span>
      <${CopyAs} share=${{ terms: shareTerms }} path=${`${pathOf(job)}/stats?range=${range}`} /></div>
    <${Figures} data=${data} range=${range} />
    <${Charts} buckets=${buckets} step=${step} baseline=${data.baseline} />
    ${cut && html`<p class="mute">Some intervals have more attempts than are read. Their figures cover the newest ones.</p>`}
    <${ByInterval} buckets=${buckets} step=${step} />`;
}

/** The median of the buckets' medians, each as often as it has attempts. With one bucket, this is the median itself. */
function typical(buckets, read) {
  const found = buckets.filter((one) => known(read(one)?.p50)).sort((a, b) => read(a).p50 - read(b).p50);
  const half = sum(found, "attempts") / 2;
  let passed = 0;
  for (const one of found) {
    passed += one.attempts;
    if (passed >= half) return read(one).p50;
  }
  return null;
}

/** The figures of the range that the charts show. The usual duration and the share of missed occurrences have a period of their own, which they name. */
function Figures({ data, range }) {
  const { baseline, missed } = data;
  const { buckets } = data.series;
  const [attempts, failed, retries] = ["attempts", "failed", "retries"].map((field) => sum(buckets, field));
  const more = buckets.some((one) => one.more) ? "+" : "";
  const one = (title, value, note, tone = "") => html`<div><dt>${title}</dt><dd class=${tone}>${value}</dd><dd class="mute">${unbroken(note)}</dd></div>`;
  const spread = (title, read, none) => {
    const median = typical(buckets, read);
    const p99 = Math.max(...buckets.map((bucket) => read(bucket)?.p99).filter(known));
    return one(title, formatDuration(median), median === null ? none : `median; p99 up to ${formatDuration(p99)}`);
  };
  const usual = baseline.median ? one("Usual duration", duration(baseline.median), `median of past runs; up to ${duration(baseline.longest)} is normal${baseline.slow_after ? `, over ${duration(baseline.slow_after)} counts as slow` : ""}`)
    : one("Usual duration", "–", "known after a few successful runs");
  return html`<dl class="measures" aria-label=${`The last ${RANGES[range].replace(/^1 /, "")}`}>
    ${one("Attempts", `${count(attempts)}${more}`, `${retriesText(retries)}, in ${RANGES[range]}`)}
    ${one("Failed", attempts ? share(failed / attempts) : "–", `${count(failed)} of ${count(attempts)}${more} attempts`, failed ? "tone-bad" : "")}
    ${spread("Duration", (bucket) => bucket.duration, "no attempt has ended")}
    ${spread("Lateness", (bucket) => bucket.lateness, "no scheduled run has started")}
    ${usual}
    ${one("Missed, last 30 days", missed.rate === null ? "–" : `${+(missed.rate * 100).toFixed(4)}%`, missedText(missed), missed.missed ? "tone-bad" : "")}
  </dl>
  ${baseline.outgrown && html`<p class="tone-warn"><${Icon} name="warning" /> Runs take longer than the ${baseline.interval} between two occurrences.</p>`}`;
}

function Charts({ buckets, step, baseline }) {
  const longest = Math.max(0, ...buckets.map((one) => one.duration?.p99 ?? 0));
  const limit = (text) => (text && longest && parseDuration(text) < longest * FAR ? parseDuration(text) : null);
  const [usual, slow] = [limit(baseline.median), limit(baseline.slow_after)];
  const per = `per ${formatDuration(step)}`;
  const charts = [
    { title: "Duration", scale: SECONDS, none: "No attempts ended in this period.", label: "duration of attempts: median, 95th and 99th percentile, with the usual duration",
      bands: [[0, 1, "busy"], [1, 2, "busy"]], summary: summarize(buckets, (one) => one.duration?.p99, "p99 up to"),
      draw: [["p99", "busy", (one) => one.duration?.p99, "dotted"], ["p95", "busy", (one) => one.duration?.p95, "edge"], ["p50", "busy", (one) => one.duration?.p50],
        ...(usual ? [["usual", "good", () => usual, "limit"]] : []), ...(slow ? [["slow after", "warn", () => slow, "limit"]] : [])] },
    { title: "Lateness", scale: SECONDS, none: "No scheduled runs started in this period.", label: "lateness of scheduled runs: median and 99th percentile", bands: [[0, 1, "warn"]],
      summary: summarize(buckets, (one) => one.lateness?.p99, "p99 up to"),
      draw: [["p99", "warn", (one) => one.lateness?.p99, "dotted"], ["p50", "warn", (one) => one.lateness?.p50]] },
    { title: "Attempts", scale: COUNT, none: "No attempts in this period.", label: "failed attempts among all attempts",
      summary: `${count(sum(buckets, "failed"))} of ${count(sum(buckets, "attempts"))} attempts failed`,
      draw: [["attempts", "calm", (one) => one.attempts, "bars"], ["failed", "bad", (one) => one.failed, "bars"]] },
    sum(buckets, "retries") > 0 && { title: "Attempts per run", scale: AVERAGE, label: "attempts per run; more than 1 are retries",
      summary: `${count(sum(buckets, "attempts"))} attempts, ${retriesText(sum(buckets, "retries"))}`,
      draw: [["attempts per run", "calm", attemptsPerRun]] },
  ].filter(Boolean);
  return html`<h2 class="unseen">Charts</h2><div class="small-charts large ${charts.length % 2 ? "odd" : ""}">${charts.map((chart) => html`<${SmallChart} key=${chart.title} ...${chart} points=${buckets} height=${170}
    label=${`${chart.label}, ${per}: ${chart.summary}`} />`)}</div>`;
}

const attemptsPerRun = (one) => (one.attempts > one.retries ? one.attempts / (one.attempts - one.retries) : null);

function summarize(buckets, read, text) {
  const values = buckets.map(read).filter(known);
  return values.length ? `${text} ${formatDuration(Math.max(...values))}` : "";
}

/** The charts as a table, the newest interval first. */
function ByInterval({ buckets, step }) {
  const rows = buckets.filter((one) => one.attempts).toReversed();
  const names = ["Attempts", "Retries", "Failed", "Duration p50", "p95", "p99", "Lateness p50", "p99"];
  const label = `Metrics per ${formatDuration(step)}`;
  return html`<details open=${query.value.get("table") === "1"}><summary onClick=${(event) => { event.preventDefault(); setQuery({ table: query.peek().get("table") ? "" : "1" }); }}>Charts as a table</summary>
    <div class="table rows points" role="group" aria-label=${label} tabindex="0"><table><caption class="unseen">${label}</caption>
    <thead><tr><th scope="col">From</th>${names.map((name) => html`<th scope="col" class="number">${name}</th>`)}</tr></thead>
    <tbody>${rows.map((one) => html`<tr key=${one.at}><th scope="row">${formatTime(one.at).slice(0, 16)}</th>
      <td class="number" data-label="Attempts">${count(one.attempts)}${one.more ? "+" : ""}</td><td class="number" data-label="Retries">${count(one.retries)}</td><td class="number ${one.failed ? "tone-bad" : ""}" data-label="Failed">${count(one.failed)}</td>
      ${["p50", "p95", "p99"].map((name) => html`<td class="number" data-label=${`Duration ${name}`}>${formatDuration(one.duration?.[name])}</td>`)}
      ${["p50", "p99"].map((name) => html`<td class="number" data-label=${`Lateness ${name}`}>${formatDuration(one.lateness?.[name])}</td>`)}</tr>`)}</tbody></table></div></details>`;
}
