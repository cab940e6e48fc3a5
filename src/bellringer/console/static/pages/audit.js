// Audit log: who changed what, when and from where, newest first; and the seals of the hash chain.
import { html, useRef, useState } from "../lib/html.js";
import { caller, get, may, part } from "../lib/api.js";
import { download } from "../lib/download.js";
import { write } from "../lib/json.js";
import { Icon } from "../lib/icons.js";
import { useData } from "../lib/page_data.js";
import { fetchPages } from "../lib/pages.js";
import { setQuery, query } from "../lib/router.js";
import { formatDuration, formatTime, now } from "../lib/time.js";
import { copyItems } from "../parts/copy_as.js";
import { CopyAs, Empty, DescriptionList, Json, Link, Loading, MoreButton, Skeleton, Tabs, Time, copy } from "../parts/elements.js";
import { Command } from "../parts/copyable_command.js";
import { perform } from "../parts/dialog.js";
import { Changes, expand } from "../parts/diff.js";
import { DateTimeField } from "../parts/field.js";
import { Choice, Facet, FoldedFilters } from "../parts/filters.js";
import { Menu } from "../parts/menu.js";
import { shortId } from "../parts/run_text.js";
import { expression } from "../parts/schedule.js";
import { Table } from "../parts/table.js";

const TABS = { changes: "Changes", seals: "Seals" };
const PAGE = 50;
const FILTERS = ["who", "action", "kind", "target", "from", "to", "installation"];
const KINDS = ["job", "run", "tenant", "pool", "calendar", "freeze", "api_key", "secret", "webhook_endpoint", "backfill", "operation", "worker", "app"];

export default function Audit() {
  if (!caller.value) return html`<header class="head"><h1>Audit</h1></header><${Skeleton} shape="table" />`;
  if (!may("admin")) {
    return html`<header class="head"><h1>Audit</h1></header><${Empty}
      title="Only administrators can read the audit log"><p>Your role is ${caller.value.role}. An administrator can create a key for you:</p>
      <p><${Command} text="bellringer keys create NAME --role admin" /></p><//>`;
  }
  const chosen = query.value.get("tab") === "seals" ? "seals" : "changes";
  return html`<header class="head"><h1>Audit</h1></header><${LatestSeal} />
    <${Tabs} tabs=${TABS} chosen=${chosen} choose=${(tab) => setQuery({ tab: tab === "changes" ? "" : tab })} />
    <div role="tabpanel" aria-label=${TABS[chosen]}>${chosen === "seals" ? html`<${Seals} />` : html`<${Entries} />`}</div>`;
}

/** The summary line: the latest seal. */
function LatestSeal() {
  const newest = useData((stop) => get("audit/seals", { limit: 1 }, stop), []).data?.items[0];
  if (!newest) return html`<p class="lead">Every change is recorded here. <span
    class="mute">No entry is sealed yet. A scheduler seals new entries every two seconds.</span></p>`;
  return html`<p class="lead">Every change is recorded. Latest seal: no. <strong>${newest.seal_id}</strong>, <${Time} at=${newest.sealed_at} />.
    <span class="chain"><${Hash} of=${newest.hash} /> <span class="mute">Verify the whole chain:</span> <${Command} text="bellringer audit verify" /></span></p>`;
}

const Hash = ({ of }) => html`<button type="button" class="quiet" title=${`Copy ${of}`} aria-label=${`Copy hash ${of.slice(0, 12)}…`}
  onClick=${() => copy(of)}><code>${of.slice(0, 12)}…</code></button>`;

// Changes

const terms = () => Object.fromEntries(FILTERS.map((name) => [name, query.value.get(name) ?? ""]).filter(([, value]) => value));

function Entries() {
  const [wanted, setWanted] = useState(PAGE);
  const filters = terms();
  const found = useData((stop) => fetchPages("audit", filters, wanted, stop), [JSON.stringify(filters), wanted]);
  const items = found.data?.items ?? [];
  const [opened, setOpened] = useState(() => new Set());
  function toggle(entry) {
    setOpened((old) => {
      const next = new Set(old);
      if (!next.delete(entry.audit_id)) next.add(entry.audit_id);
      return next;
    });
  }
  const values = useSeen(items);
  const search = new URLSearchParams(filters).toString();
  const flags = Object.entries(filters).map(([name, value]) => (name === "installation" ? " --installation" : ` --${name} '${value}'`)).join("");
  const exportAll = { text: "Export as NDJSON", icon: "download", title: "the matching entries, with all values", act: () => perform(() => download("audit/export", filters, "audit.ndjson")) };
  return html`<div class="tools open-wide" role="group" aria-label="filters">
      <${FoldedFilters} active=${Object.keys(filters).length}>
        <${Choice} name="from" label="Period" of=${periods()} />
        <${Facet} name="who" label="Who" of=${values("who")} /><${Choice} name="action" label="Action" of=${Object.fromEntries(values("action").map((one) => [one, one]))} />
        <${Choice} name="kind" label="Kind" of=${asChoices([...new Set([...KINDS, ...values("kind")])])} /><${Facet} name="target" label="Target" of=${values("target")} />
        <${Range} />
        ${caller.value.everywhere && html`<label title="Changes of pools, keys of the installation and others that belong to no tenant"><input type="checkbox" checked=${"installation" in filters}
          onChange=${() => setQuery({ installation: "installation" in filters ? "" : "true" })} /> Installation-wide changes</label>`}<//>
      ${search && html`<button type="button" class="quiet" onClick=${clear}>Clear filters</button>`}
      <span class="gap"></span><${Menu} label="Export and copy" items=${[exportAll, ...copyItems({ cli: `bellringer audit list${flags}`, path: `audit${search && `?${search}`}` })]} />
    </div>
    <${Loading} of=${found} shape="table">${(data) => html`${data.items.length === 0 ? html`<${Nothing} filtered=${search} more=${data.next_cursor} />`
      : html`<${Table} caption="Changes, newest first" kind="audit" columns=${COLUMNS(opened, toggle)} rows=${data.items} id=${(entry) => String(entry.audit_id)} open=${toggle}
        detail=${(entry) => opened.has(entry.audit_id) && html`<${Entry} entry=${entry} />`} />`}
      <${MoreButton} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />`}<//>`;
}

/** Values of a field, also those that were seen before a filter hid them; the filter's own value is always among them. */
function useSeen(items) {
  const seen = useRef({});
  return (name) => {
    const values = (seen.current[name] ??= new Set());
    for (const entry of items) values.add(entry[name]);
    if (query.value.get(name)) values.add(query.value.get(name));
    return [...values].sort();
  };
}

const asChoices = (values) => Object.fromEntries(values.map((value) => [value, value.replaceAll("_", " ")]));
const clear = () => setQuery(Object.fromEntries(FILTERS.map((name) => [name, ""])));

function Nothing({ filtered, more }) {
  if (!filtered) return html`<${Empty} title="No changes yet"><p>Creating a job writes the first entry.</p><p><${Command}
    text="bellringer audit list" /></p><//>`;
  return html`<${Empty} title=${more ? "No match among the entries examined" : "No matching entries"}><p><button type="button"
    onClick=${clear}>Clear filters</button></p><//>`;
}

const PERIODS = { "1h": [1, "last hour"], "24h": [24, "last 24 hours"], "7d": [168, "last 7 days"], "30d": [720, "last 30 days"] };
const HOUR_MS = 3_600_000;

/** Beginnings of common periods; a beginning that was chosen otherwise is among them. */
function periods() {
  const hour = Math.floor(Date.now() / HOUR_MS) * HOUR_MS; // whole hours, so that the options stay the same for a while
  const all = Object.fromEntries(Object.values(PERIODS).map(([hours, text]) => [new Date(hour - hours * HOUR_MS).toISOString(), text]));
  const chosen = query.value.get("from");
  return chosen && !(chosen in all) ? { ...all, [chosen]: `since ${formatTime(chosen).slice(0, 16)}` } : all;
}

function Range() {
  return html`<details class="range" open=${Boolean(query.value.get("to"))}><summary>Exact times</summary><div class="fields">
    <${DateTimeField} label="From" value=${query.value.get("from") ?? ""} set=${(from) => setQuery({ from })} /><${DateTimeField} label="Before"
      value=${query.value.get("to") ?? ""} set=${(to) => setQuery({ to })} /></div></details>`;
}

const PLACES = { job: (id) => `jobs/${part(id)}`, run: (id) => `runs/${part(id)}`, operation: (id) => `operations/op_${part(id)}` };

const NAMED_KINDS = ["calendar", "pool", "tenant"]; // their targets are names; those of others are ids

/** The name of the target: its current one, or the one in the entry; otherwise its shortened id. */
const targetName = (entry) => [entry.name, entry.after?.name, entry.before?.name].find((name) => typeof name === "string")
  ?? (NAMED_KINDS.includes(entry.kind) ? entry.target : shortId(entry.target));

function Target({ of }) {
  const text = html`<span class="clip" title=${of.target}>${targetName(of)}</span>`;
  return html`<span class="target"><span class="mute">${of.kind.replaceAll("_", " ")}</span> ${of.kind in PLACES ? html`<${Link} to=${PLACES[of.kind](of.target)}>${text}<//>` : text}</span>`;
}

/** The time by the clock, with the date unless it is today's, and the age. */
function When({ at }) {
  const text = formatTime(at);
  const isToday = text.slice(0, 10) === formatTime(now.value).slice(0, 10);
  return html`<time datetime=${at} title=${text}>${text.slice(isToday ? 11 : 5, 19)}</time> <span class="mute"><${Time} at=${at} /></span>`;
}

const COLUMNS = (opened, toggle) => [
  { name: "When", class: "tight", phone: "side", cell: (entry) => html`<${When} at=${entry.at} />` },
  { name: "Who", class: "tight", phone: "line", cell: (entry) => html`<${Link} to="audit" terms=${{ ...terms(), who: entry.who }}>${entry.who}<//>` },
  { name: "Action", class: "tight", phone: "line", cell: (entry) => html`<code>${entry.action}</code>` },
  { name: "Target", phone: "title", cell: (entry) => html`<${Target} of=${entry} />` },
  { name: "Change", class: "changed-cell", phone: "full", cell: (entry) => html`<button type="button" class="quiet changed" aria-expanded=${opened.has(entry.audit_id)} onClick=${() => toggle(entry)}>
    <${Icon} name=${opened.has(entry.audit_id) ? "chevron-down" : "chevron-right"} /> <span class="clip" title=${sentenceOf(entry)}>${sentenceOf(entry)}</span></button>` },
  { name: "From", class: "tight", phone: "hide", cell: (entry) => entry.origin ?? html`<span class="mute" title="by the server itself, not by a request">internal</span>` },
  { name: "Request", class: "tight later", phone: "hide", title: "the end of the request id", cell: (entry) => entry.request_id && html`<${Request} of=${entry.request_id} />` },
];

const ID_END = 8; // ids begin with the time, so requests of the same minute differ only at the end
const Request = ({ of }) => html`<button type="button" class="quiet" title=${`Copy ${of}`} aria-label=${`Copy request id ending in ${of.slice(-ID_END)}`}
  onClick=${() => copy(of)}><code>…${of.slice(-ID_END)}</code></button>`;

/** The API returns only the size of large values. */
function sizeOrValue(value) {
  const size = value && typeof value === "object" && Object.keys(value).length === 1 ? value.bytes : undefined;
  return size === undefined ? value : `${size.toLocaleString("en")} bytes; the export contains them`;
}

const INTERNAL = ["schedule_ids"]; // numbers of rows; `schedules` shows the same change
const changedFields = (entry) => entry.changed.filter((name) => !INTERNAL.includes(name));

function changesOf(entry) {
  const fields = changedFields({ changed: entry.changed.length ? entry.changed : Object.keys({ ...entry.before, ...entry.after }) });
  return fields.map((field) => ({ field, before: sizeOrValue(entry.before?.[field]), after: sizeOrValue(entry.after?.[field]) }));
}

const SUMMARY_FIELDS = 3; // fields that a row names with their values
const SUMMARY_LENGTH = 40; // characters of a value
const INTERVAL = /^(?:(\d+) days? ?)?(?:(\d+):(\d\d):(\d\d)(?:\.\d+)?)?$/; // an interval as the database writes it
const IN_SECONDS = new Set(["timeout", "heartbeat", "expected_duration", "window", "base", "cap", "max_elapsed", "within"]);

/** Durations as the console writes them elsewhere, such as 2m; other values unchanged. */
function readable(value, field) {
  const parts = typeof value === "string" && value ? INTERVAL.exec(value) : null;
  if (parts) return formatDuration(Number(parts[1] ?? 0) * 86_400 + Number(parts[2] ?? 0) * 3600 + Number(parts[3] ?? 0) * 60 + Number(parts[4] ?? 0));
  return typeof value === "number" && IN_SECONDS.has(field.split(".").at(-1)) ? formatDuration(value) : value;
}

const readableChange = ({ field, before, after }) => ({ field, before: readable(before, field), after: readable(after, field) });

/** A value in one line; nothing is "none". */
function shortValue(raw, field = "") {
  const value = readable(raw, field);
  if (value === undefined || value === null || value === "") return "none";
  if (typeof value === "boolean") return value ? "yes" : "no";
  const text = typeof value === "string" ? value : write(value);
  return text.length > SUMMARY_LENGTH ? `${text.slice(0, SUMMARY_LENGTH)}…` : text;
}

/** The first schedule of a stored job as one expression. */
function scheduleOf(values) {
  const [first, ...rest] = Array.isArray(values.schedules) ? values.schedules : [];
  return isDocument(first) && `${expression(first)}${rest.length ? ` and ${rest.length} more` : ""}`;
}

const isDocument = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const fieldName = (field) => field.replace(/^spec\./, "").replaceAll("_", " ");
const items = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

/** What an operation does and to how many, such as "pause 3 jobs". */
function operationText({ action, total }) {
  const [what, verb] = String(action ?? "").split(".");
  return verb ? `${verb} ${items(total ?? 0, what.replace(/s$/, "").replaceAll("_", " "))}` : "";
}

// Changes that one sentence describes better than their fields. Each gets the entry; an empty text falls back to the fields.
const SENTENCES = {
  "job.paused": ({ after }) => (after?.paused_reason ? `paused: ${after.paused_reason}` : "paused"),
  "job.resumed": ({ before }) => (before?.paused_reason ? `resumed; it was paused: ${before.paused_reason}` : "resumed"),
  "job.deleted": () => "deleted",
  "run.triggered": () => "started manually",
  "run.sent": () => "sent without a job",
  "run.cancelled": () => "cancelled",
  "operation.created": ({ after }) => operationText(after ?? {}),
  "operation.changed": ({ before, after }) => (before?.state !== after?.state && after?.done !== undefined
    ? `${after.state === "done" ? "finished" : after.state}: ${items(after.done, "item")} changed` : ""),
  "api_key.created": ({ after }) => `role ${after?.role}, ${after?.expires_at ? `expires ${formatTime(after.expires_at).slice(0, 16)}` : "never expires"}`,
  "calendar.created": () => "new calendar",
  "secret.created": () => "new secret; its value is hidden",
  "webhook_endpoint.created": ({ after }) => `sends ${after?.kinds?.length ? after.kinds.join(", ") : "all events"} to ${after?.url}`,
  "app.created": ({ after }) => (after?.orphans ? `jobs that its code no longer declares: ${after.orphans}` : ""),
};

/** What changed, in one line: a sentence, or the fields with old and new values; for a new or deleted object, what identifies it. */
function sentenceOf(entry) {
  return SENTENCES[entry.action]?.(entry) || fieldsText(entry) || entry.action.split(".").at(-1).replaceAll("_", " ");
}

function fieldsText(entry) {
  const { before, after } = entry;
  if (before && after) {
    const all = changesOf(entry).flatMap(expand);
    const changes = all.some(({ field }) => !IS_TIME.test(field)) ? all.filter(({ field }) => !IS_TIME.test(field)) : all; // times only follow other changes
    const shown = changes.slice(0, SUMMARY_FIELDS).map(({ field, before: old, after: new_ }) => `${fieldName(field)} ${shortValue(old, field)} → ${shortValue(new_, field)}`);
    return [...shown, changes.length > SUMMARY_FIELDS && `${changes.length - SUMMARY_FIELDS} more`].filter(Boolean).join(", ");
  }
  const values = after ?? before;
  if (!values) return entry.changed.map((one) => one.replaceAll("_", " ")).join(", ");
  if (isDocument(values.spec)) { // a job: its stored form has the number of its task, not the name
    const { kwargs } = values.spec;
    return [scheduleOf(values) || "no schedule", isDocument(kwargs) && Object.keys(kwargs).length > 0 && shortValue(kwargs)].filter(Boolean).join(" · ");
  }
  const plain = Object.entries(values).filter(([field, value]) => !IDENTIFYING.test(field) && value !== null && value !== "" && typeof value !== "object");
  return plain.slice(0, SUMMARY_FIELDS).map(([field, value]) => `${fieldName(field)} ${shortValue(value, field)}`).join(", ");
}

const IDENTIFYING = /^(name|who|version|shard|routed|digest|.*_id|.*_at|.*_by|.*hash.*)$/; // shown elsewhere in the row, or without meaning in one line
const IS_TIME = /_(at|until)$/;

/** An entry in full, below its row: what changed, who did it, from where, and in which request. */
function Entry({ entry }) {
  const request = entry.request_id && html`<code>${entry.request_id}</code> <button type="button" class="quiet icon" title="Copy the request id" aria-label="Copy the request id"
    onClick=${() => copy(entry.request_id)}><${Icon} name="copy" /></button>`;
  return html`<div class="entry"><div>${entry.before || entry.after ? html`<${Changes} of=${changesOf(entry).flatMap(expand).map(readableChange)} caption="Before and after" />`
      : html`<p class="mute">This action has no values to compare.</p>`}</div>
    <div><${DescriptionList} of=${[
      ["Who", entry.who], ["From", entry.origin ?? "internal: by the server itself, not by a request"], ["When", formatTime(entry.at)], request && ["Request", request],
      ["Target", html`${entry.kind.replaceAll("_", " ")} <code>${entry.target}</code>`], entry.revision !== null && ["Revision", entry.revision], ["Entry", entry.audit_id],
    ]} /><details><summary>As JSON</summary><${Json} value=${entry} label="The entry as JSON" /></details></div></div>`;
}

// Seals

const SEALS = [
  { name: "Seal", class: "number", phone: "title", cell: (seal) => seal.seal_id },
  { name: "When", class: "tight", phone: "side", cell: (seal) => html`<${Time} at=${seal.sealed_at} short=${false} />` },
  { name: "Entries", class: "number", phone: "line", short: "entries", cell: (seal) => seal.entries.toLocaleString("en") },
  { name: "Hash", phone: "full", cell: (seal) => html`<code>${seal.hash}</code>` },
  { name: "Previous hash", phone: "hide", cell: (seal) => html`<${Hash} of=${seal.prev_hash} />` },
];

function Seals() {
  const [wanted, setWanted] = useState(PAGE);
  const found = useData((stop) => fetchPages("audit/seals", {}, wanted, stop), [wanted]);
  return html`<p class="mute">A seal is the SHA-256 of the previous seal and of all entries since then, of all tenants.
    Store a seal elsewhere from time to time: a later rewrite of the log is then detectable. <${CopyAs} cli="bellringer audit verify" path="audit/seals" /></p>
    <${Loading} of=${found} shape="table">${(data) => data.items.length === 0
      ? html`<${Empty} title="No seals yet"><p>A scheduler seals new entries every two seconds.</p><p><${Command}
        text="bellringer scheduler" /></p><//>`
      : html`<${Table} caption="Seals, newest first" columns=${SEALS} rows=${data.items} id=${(seal) => String(seal.seal_id)} /><${MoreButton}
        cursor=${data.next_cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />`}<//>`;
}
