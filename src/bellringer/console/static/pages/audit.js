// Audit: who did what, when and from where, the newest first; and the seals that chain it.
import { html, useState } from "../lib/html.js";
import { caller, get, may, part } from "../lib/api.js";
import { download } from "../lib/download.js";
import { useData } from "../lib/load.js";
import { gather } from "../lib/pages.js";
import { narrow, query } from "../lib/place.js";
import { full } from "../lib/time.js";
import { CopyAs, Empty, Facts, Json, Link, Loading, More, Tabs, When, copy } from "../parts/basics.js";
import { Command } from "../parts/command.js";
import { attempt, show } from "../parts/dialog.js";
import { Changes } from "../parts/diff.js";
import { Moment } from "../parts/field.js";
import { Facet } from "../parts/filters.js";
import { Table } from "../parts/table.js";

const TABS = { changes: "Changes", seals: "Seals" };
const PAGE = 50;
const FILTERS = ["who", "action", "kind", "target", "from", "to", "installation"];
const KINDS = ["job", "run", "tenant", "pool", "calendar", "freeze", "api_key", "secret", "webhook_endpoint", "backfill", "operation", "worker"];

export default function Audit() {
  if (!caller.value) return html`<p class="loading" aria-busy="true">Reading …</p>`;
  if (!may("admin")) {
    return html`<header class="head"><h1>Audit</h1></header><${Empty}
      title="The audit is for administrators"><p>You are ${caller.value.role}. Who may, makes a key for you:</p>
      <p><${Command} text="bellringer keys create NAME --role admin" /></p><//>`;
  }
  const chosen = query.value.get("tab") === "seals" ? "seals" : "changes";
  return html`<header class="head"><h1>Audit</h1></header><${Sealed} />
    <${Tabs} tabs=${TABS} chosen=${chosen} choose=${(tab) => narrow({ tab: tab === "changes" ? "" : tab })} />
    <div role="tabpanel" aria-label=${TABS[chosen]}>${chosen === "seals" ? html`<${Seals} />` : html`<${Entries} />`}</div>`;
}

/** The first line: how far the chain reaches. */
function Sealed() {
  const newest = useData((stop) => get("audit/seals", { limit: 1 }, stop), []).data?.items[0];
  if (!newest) return html`<p class="lead">Every change leaves an entry here. <span
    class="mute">None is sealed yet: a scheduler does so every two seconds.</span></p>`;
  return html`<p class="lead">Every change leaves an entry, chained up to seal <strong>${newest.seal_id}</strong>, <${When} at=${newest.sealed_at} />.
    <${Hash} of=${newest.hash} /> <span class="mute">To check the whole chain:</span> <${Command} text="bellringer audit verify" /></p>`;
}

const Hash = ({ of }) => html`<button type="button" class="quiet" title=${`copy ${of}`} aria-label=${`copy the hash ${of.slice(0, 12)} …`}
  onClick=${() => copy(of)}><code>${of.slice(0, 12)} …</code></button>`;

// Changes

const terms = () => Object.fromEntries(FILTERS.map((name) => [name, query.value.get(name) ?? ""]).filter(([, value]) => value));

function Entries() {
  const [wanted, want] = useState(PAGE);
  const wants = terms();
  const found = useData((stop) => gather("audit", wants, wanted, stop), [JSON.stringify(wants), wanted]);
  const items = found.data?.items ?? [];
  const search = new URLSearchParams(wants).toString();
  const flags = Object.entries(wants).map(([name, value]) => (name === "installation" ? " --installation" : ` --${name} '${value}'`)).join("");
  return html`<div class="tools" role="group" aria-label="filters">
      <${Facet} name="who" label="Who" of=${known(items, "who")} /><${Facet} name="action" label="Did" of=${known(items, "action")} />
      <${Facet} name="kind" label="To a" of=${KINDS} /><${Facet} name="target" label="Target" of=${known(items, "target")} />
      <${Range} />
      ${caller.value.everywhere && html`<label><input type="checkbox" checked=${"installation" in wants}
        onChange=${() => narrow({ installation: "installation" in wants ? "" : "true" })} /> of the whole installation</label>`}
      ${search && html`<button type="button" class="quiet" onClick=${clear}>Clear</button>`}
    </div>
    <div class="tools"><button type="button"
      onClick=${() => attempt(() => download("audit/export", wants, "audit.ndjson"))}>Export as NDJSON</button><span class="gap"></span>
      <${CopyAs} cli=${`bellringer audit list${flags}`} path=${`audit${search && `?${search}`}`} /></div>
    <${Loading} of=${found}>${(data) => html`${data.items.length === 0 ? html`<${Nothing} filtered=${search} more=${data.next_cursor} />`
      : html`<${Table} caption="Changes, the newest first" columns=${COLUMNS} rows=${data.items} id=${(entry) => String(entry.audit_id)} open=${open} />`}
      <${More} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => want(wanted + PAGE)} />`}<//>`;
}

const known = (items, name) => [...new Set(items.map((entry) => entry[name]))].sort();
const clear = () => narrow(Object.fromEntries(FILTERS.map((name) => [name, ""])));

function Nothing({ filtered, more }) {
  if (!filtered) return html`<${Empty} title="Nothing was changed yet"><p>The first job that is made is the first entry.</p><p><${Command}
    text="bellringer audit list" /></p><//>`;
  return html`<${Empty} title=${more ? "Nothing fits among those that were looked at" : "Nothing fits"}><p><button type="button"
    onClick=${clear}>Clear the filters</button></p><//>`;
}

function Range() {
  return html`<details class="range" open=${Boolean(query.value.get("from") || query.value.get("to"))}><summary>When</summary><div class="fields">
    <${Moment} label="From" value=${query.value.get("from") ?? ""} set=${(from) => narrow({ from })} /><${Moment} label="Before"
      value=${query.value.get("to") ?? ""} set=${(to) => narrow({ to })} /></div></details>`;
}

const PLACES = { job: (id) => `jobs/${part(id)}`, run: (id) => `runs/${part(id)}`, operation: (id) => `operations/op_${part(id)}` };

/** What a thing is called: now, or else as it was when it was changed. */
const called = (entry) => [entry.name, entry.after?.name, entry.before?.name].find((name) => typeof name === "string") ?? entry.target;

function Target({ of }) {
  const text = html`<span class="clip" title=${of.target}>${called(of)}</span>`;
  return html`<span class="mute">${of.kind}</span> ${of.kind in PLACES ? html`<${Link} to=${PLACES[of.kind](of.target)}>${text}<//>` : text}`;
}

const COLUMNS = [
  { name: "When", class: "tight", cell: (entry) => html`<${When} at=${entry.at} />` },
  { name: "Who", class: "tight", cell: (entry) => html`<${Link} to="audit" terms=${{ ...terms(), who: entry.who }}>${entry.who}<//>` },
  { name: "Did", class: "tight", cell: (entry) => html`<code>${entry.action}</code>` },
  { name: "What", cell: (entry) => html`<${Target} of=${entry} />` },
  { name: "Changed", cell: (entry) => html`<button type="button" class="quiet clip" title="before and after"
    onClick=${() => open(entry)}>${entry.changed.map((one) => one.replaceAll("_", " ")).join(", ") || "details"} …</button>` },
  { name: "From where", class: "tight", cell: (entry) => entry.origin ?? html`<span class="mute">no request</span>` },
  { name: "Request", class: "tight", cell: (entry) => entry.request_id && html`<${Request} of=${entry.request_id} />` },
];

const Request = ({ of }) => html`<button type="button" class="quiet" title=${`copy ${of}`} aria-label=${`copy the request's id ${of.slice(0, 8)}`}
  onClick=${() => copy(of)}><code>${of.slice(0, 8)}</code></button>`;

/** Large values are told by their size alone; so say that. */
function small(value) {
  const size = value && typeof value === "object" && Object.keys(value).length === 1 ? value.bytes : undefined;
  return size === undefined ? value : `${size.toLocaleString("en")} bytes; the export has them`;
}

function changesOf(entry) {
  const fields = entry.changed.length ? entry.changed : Object.keys({ ...entry.before, ...entry.after });
  return fields.map((field) => ({ field, before: small(entry.before?.[field]), after: small(entry.after?.[field]) }));
}

function open(entry) {
  show(`${entry.action} · ${called(entry)}`, ({ close }) => html`<${Facts} of=${[
      ["Who", entry.who], ["When", full(entry.at)], ["From where", entry.origin], ["Request", entry.request_id && html`<code>${entry.request_id}</code>`],
      ["What", html`${entry.kind} <code>${entry.target}</code>`], entry.revision !== null && ["Revision", entry.revision], ["Entry", entry.audit_id],
    ]} />
    ${entry.before || entry.after ? html`<${Changes} of=${changesOf(entry)} caption="before and after" />` : html`<p
      class="mute">It left nothing to compare.</p>`}
    <details><summary>As JSON</summary><${Json} value=${entry} label="the entry as JSON" /></details>
    <div class="actions"><button type="button" autofocus onClick=${close}>Close</button></div>`);
}

// Seals

const SEALS = [
  { name: "Seal", class: "number", cell: (seal) => seal.seal_id },
  { name: "When", class: "tight", cell: (seal) => html`<${When} at=${seal.sealed_at} short=${false} />` },
  { name: "Entries", class: "number", cell: (seal) => seal.entries.toLocaleString("en") },
  { name: "Hash", cell: (seal) => html`<code>${seal.hash}</code>` },
  { name: "Builds on", cell: (seal) => html`<${Hash} of=${seal.prev_hash} />` },
];

function Seals() {
  const [wanted, want] = useState(PAGE);
  const found = useData((stop) => gather("audit/seals", {}, wanted, stop), [wanted]);
  return html`<p class="mute">A seal is the SHA-256 of the seal before it and of all changes since, of all tenants.
    Keep one elsewhere from time to time: from there on, a rewrite shows. <${CopyAs} cli="bellringer audit verify" path="audit/seals" /></p>
    <${Loading} of=${found}>${(data) => data.items.length === 0
      ? html`<${Empty} title="Nothing is sealed yet"><p>A scheduler seals what was changed, every two seconds.</p><p><${Command}
        text="bellringer scheduler" /></p><//>`
      : html`<${Table} caption="Seals, the newest first" columns=${SEALS} rows=${data.items} id=${(seal) => String(seal.seal_id)} /><${More}
        cursor=${data.next_cursor} busy=${found.busy} onMore=${() => want(wanted + PAGE)} />`}<//>`;
}
