// Timeline of the last and the next hour, one lane per job: waiting is hatched, running is solid, future fires are dots.
// Each lane also has a text for screen readers. Only the job name is focusable, because there are too many runs to step through.
import { html } from "../lib/html.js";
import { part } from "../lib/api.js";
import { address } from "../lib/router.js";
import { formatClock, formatTime, formatDuration } from "../lib/time.js";
import { Link } from "./elements.js";
import { look } from "./state_badge.js";

const TICKS = [0, 0.25, 0.5, 0.75, 1];
const FAILED = ["dead", "failed", "lost", "timed_out"];
const UNFINISHED = ["queued", "blocked", "running", "retrying", "waiting", "sent"];

const LEGEND = [["run tone-good", "succeeded"], ["run tone-bad", "failed"], ["run tone-busy", "running"], ["wait tone-calm", "waiting"], ["dot", "upcoming"]];

const percent = (share) => `${Math.min(Math.max(share, 0), 1) * 100}%`;

/** of: the timeline of GET overview; now: the server's time of the response. */
export function Timeline({ of, now }) {
  const from = Date.parse(of.from);
  const length = Date.parse(of.to) - from;
  const at = (instant) => (Date.parse(instant) - from) / length;
  const scale = { at, now: at(now), nowAt: now };
  const word = (share) => (share === 0.5 ? "now" : formatClock(new Date(from + share * length)).slice(0, 5));
  return html`<div class="timeline">
    <div class="axis" aria-hidden="true"><span></span><div class="scale">
      ${TICKS.map((share) => html`<span class="tick" style=${{ left: percent(share) }}>${word(share)}</span>`)}</div></div>
    <ul>${of.lanes.map((lane) => html`<${Lane} key=${lane.job_id} lane=${lane} scale=${scale} />`)}</ul>
    <p class="legend mute" aria-hidden="true">${LEGEND.map(([mark, text]) => html`<span key=${text}><span class="key ${mark}"></span> ${text}</span>`)}${of.lanes.some((lane) => lane.more || lane.earlier)
        && html`<span><span class="key further"></span> more than shown</span>`}</p>
  </div>`;
}

function words(lane) {
  const failed = lane.runs.filter((run) => FAILED.includes(run.state)).length;
  const going = lane.runs.filter((run) => UNFINISHED.includes(run.state)).length;
  return [
    `${lane.earlier ? "newest " : ""}${lane.runs.length} runs`,
    failed && `${failed} failed`,
    going && `${going} unfinished`,
    lane.fires.length ? `${lane.more ? `more than ${lane.fires.length}` : lane.fires.length} upcoming, next at ${formatTime(lane.fires[0])}` : "none upcoming",
  ].filter(Boolean).join(", ");
}

function Lane({ lane, scale }) {
  return html`<li><${Link} to=${`jobs/${part(lane.job_id)}`} class="lane-name" title=${lane.job}>${lane.job}<//>
    <div class="lane"><span class="unseen">${words(lane)}</span>
      <a class="coming" tabindex="-1" aria-hidden="true" href=${address(`jobs/${part(lane.job_id)}`, { tab: "schedule" })}
        style=${{ left: percent(scale.now) }} title=${lane.fires.length ? `next at ${formatTime(lane.fires[0])}` : lane.paused ? "paused" : "none in the next hour"}></a>
      ${lane.runs.map((run) => html`<${Bar} key=${run.run_id} run=${run} scale=${scale} />`)}
      ${lane.fires.map((fire) => html`<span key=${fire} class="dot" style=${{ left: percent(scale.at(fire)) }}></span>`)}
      ${lane.more && html`<span class="further" aria-hidden="true" style=${{ left: percent(scale.at(lane.fires.at(-1))) }}></span>
        <span class="stops" style=${{ left: `min(${percent(scale.at(lane.fires.at(-1)))}, 100% - 11rem)` }}>${lane.fires.length} shown, more follow</span>`}
      ${lane.earlier && html`<span class="further earlier" aria-hidden="true" style=${{ right: percent(1 - scale.at(lane.runs.at(-1).scheduled_for)) }}></span>
        <span class="stops" style=${{ left: "0" }}>newest ${lane.runs.length} shown</span>`}
      ${lane.fires.length === 0 && html`<span class="stops none" style=${{ left: percent(scale.now) }}>${lane.paused ? "paused" : html`none<span class="roomy"> in the next hour</span>`}</span>`}
      <span class="now" style=${{ left: percent(scale.now) }}></span>
    </div></li>`;
}

function Bar({ run, scale }) {
  const due = scale.at(run.scheduled_for);
  const ended = run.finished_at ? scale.at(run.finished_at) : scale.now;
  const began = run.started_at ? scale.at(run.started_at) : ended; // skipped and cancelled runs have no start
  const tone = look(run.state)[1];
  const took = run.started_at ? ` · ran ${formatDuration((Date.parse(run.finished_at ?? scale.nowAt) - Date.parse(run.started_at)) / 1000)}` : "";
  const waited = Math.max((Date.parse(run.started_at ?? run.finished_at ?? scale.nowAt) - Date.parse(run.scheduled_for)) / 1000, 0);
  const title = `${formatClock(run.scheduled_for)} ${run.state} · waited ${formatDuration(waited)}${took}`;
  return html`<a class="run-bar" tabindex="-1" aria-hidden="true" href=${address(`runs/${part(run.run_id)}`)} title=${title}>
    ${began > due && html`<span class="wait tone-${run.started_at ? "calm" : tone}" style=${{ left: percent(due), width: percent(began - due) }}></span>`}
    ${(run.started_at || run.finished_at) && html`<span class="run tone-${tone}" style=${{ left: percent(began), width: percent(ended - began) }}>
      </span>`}</a>`;
}
