// What the lists of a job share: paging, chips that filter, and cells for times, durations and runs.
import { html, useState } from "../lib/html.js";
import { Icon } from "../lib/icons.js";
import { get, part } from "../lib/api.js";
import { fetchPages } from "../lib/pages.js";
import { useData } from "../lib/page_data.js";
import { formatDuration, formatTime, fromNow, now } from "../lib/time.js";
import { summary } from "./diff.js";
import { Link, MoreButton } from "./elements.js";
import { look, stateWord } from "./state_badge.js";

const PAGE = matchMedia("(max-width: 48rem)").matches ? 25 : 50; // rows shown at first, and by each press of "Show more"
const READ = 200; // rows read at once where chips count and filter what was read
const SUMMARIZED = 20; // revisions whose changes lists name

/** A paginated list of a job, reloaded on changes. */
export function useList(path, terms = {}, read = fetchPages) {
  const [wanted, setWanted] = useState(PAGE);
  const found = useData((stop) => read(path, terms, wanted, stop), [path, JSON.stringify(terms), wanted]);
  return { found, more: html`<${MoreButton} cursor=${found.data?.next_cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />` };
}

/** A list of a job that chips filter: `read(wanted, stop)` reads at least READ rows, of which PAGE are shown at first. */
export function useFilteredList(read, deps) {
  const [wanted, setWanted] = useState(PAGE);
  const found = useData((stop) => read(Math.max(READ, wanted), stop), [...deps, Math.max(READ, wanted)]);
  const moreOf = (rows) => html`<${MoreButton} cursor=${rows.length > wanted || found.data?.next_cursor} busy=${found.busy}
    onMore=${() => setWanted(rows.length > wanted ? wanted + PAGE : Math.max(READ, wanted) + READ)} />`;
  return { found, wanted, moreOf };
}

/** How often each value occurs among the rows. */
export function countBy(rows, pick) {
  const counts = new Map();
  for (const row of rows) counts.set(pick(row), (counts.get(pick(row)) ?? 0) + 1);
  return counts;
}

/** Chips of which one is chosen; the first shows all. of: [[value, what is drawn, count]]. */
export function ChoiceChips({ label, all, of, chosen, choose }) {
  const chip = (value, drawn, count) => html`<button key=${value} type="button" class="chip" aria-pressed=${value === chosen} onClick=${() => choose(value)}>
    ${drawn}${count !== undefined && html` <span class="count">${count.toLocaleString("en")}</span>`}</button>`;
  return html`<div class="chips scrolling" role="group" aria-label=${label}>${chip("", "all", all)}${of.map((one) => chip(...one))}</div>`;
}

/** A state as a chip shows it; quiet if nothing has it. */
export function stateChip(state, isEmpty = false) {
  const [icon, tone] = look(state);
  return html`<span class="tone-${isEmpty ? "mute" : tone}"><${Icon} name=${icon} /> ${stateWord(state)}</span>`;
}

/** A time as clocks show it, without the date if it is today, and how far it is from now. The tooltip has all of it. */
export function Moment({ at, job, ago = true }) {
  const text = formatTime(at, job);
  const isToday = text.slice(0, 10) === formatTime(now.value, job).slice(0, 10);
  return html`<time class="moment" datetime=${at} title=${text}>${text.slice(isToday ? 11 : 0, 19)}</time>${ago && html` <span class="mute ago">${fromNow(at)}</span>`}`;
}

/** What a list shows, with a menu or a link beside it. */
export const About = ({ children, aside }) => html`<div class="about"><p class="mute">${children}</p>${aside}</div>`;

export const runLink = (id, text) => html`<${Link} to=${`runs/${part(id)}`}>${text}<//>`;

/** A duration with a bar that compares it to the longest one of the list. */
export function DurationBar({ seconds, longest, tone }) {
  if (seconds === null) return null;
  return html`<span class="took-bar"><span class="bar-of" aria-hidden="true"><span class="tone-${tone}" style=${{ width: `${longest ? Math.min(100, (seconds / longest) * 100) : 0}%` }}></span></span>
    <span class="figure">${formatDuration(seconds)}</span></span>`;
}

/** The reason of an outcome in words. */
export const reasonText = (reason = "") =>
  reason.replaceAll("_", " ");

/** What each of the newest revisions changed, by number. A revision never changes, so each is read once. */
export function useRevisionChanges(path, revisions) {
  const numbers = revisions.filter((one) => one.what === "changed" && one.revision > 1).slice(0, SUMMARIZED).map((one) => one.revision);
  const found = useData(async (stop) => new Map(await Promise.all(numbers.map(async (number) => {
    const { changes } = await get(`${path}/revisions/${number}`, {}, stop);
    return [number, summary(changes)];
  }))), [path, numbers.join()], { once: true });
  return found.data ?? new Map();
}
