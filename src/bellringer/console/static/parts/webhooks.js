// Webhook endpoints and their deliveries.
import { html, useState } from "../lib/html.js";
import { request, get, may, part, post } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { useData } from "../lib/page_data.js";
import { fetchPages } from "../lib/pages.js";
import { navigate, setQuery, query } from "../lib/router.js";
import { formatDuration, formatTime } from "../lib/time.js";
import { DialogForm } from "./dialog_form.js";
import { CopyAs, DescriptionList, Empty, Json, Link, Loading, MoreButton, Time, copy } from "./elements.js";
import { Command } from "./copyable_command.js";
import { perform, confirm, openDialog, notify } from "./dialog.js";
import { TextField, faultsAt } from "./field.js";
import { Menu } from "./menu.js";
import { Secret } from "./secret.js";
import { Segments } from "./segmented_control.js";
import { State, look } from "./state_badge.js";
import { Table } from "./table.js";

const KINDS = {
  failed: "an attempt failed", dead: "a run gave up", late: "a run is late", missed: "occurrences got no run", expired: "runs had not started by their deadline", slow: "a run takes too long",
  outgrown: "a job takes longer than its interval", blocked_loop: "a handler blocks its event loop", stranded: "a claimed run is not executed",
  skipping: "a job keeps skipping occurrences", paused: "a job was paused because its runs died", unknown_task: "runs wait for a task that no worker knows", unstarted: "runs wait in a pool without a free worker", recovered: "a problem is over",
  task_paused: "a task was paused", task_resumed: "a task was resumed",
  orphaned: "an app no longer declares a job", adopted: "an app declares a job again", overridden: "an app undid a change of a job",
};
const PATH = "webhook-endpoints";
const PAGE = 25;
const pathOf = (endpoint) => `${PATH}/${part(endpoint.endpoint_id)}`;

export function Webhooks() {
  const found = useData((stop) => get(PATH, { limit: 200 }, stop), [], { once: true });
  const chosen = query.value.get("endpoint");
  const open = (endpoint) => setQuery({ endpoint: endpoint.endpoint_id });
  return html`<div class="tools"><span class="mute">Each endpoint receives signed events over HTTP.</span><span class="gap"></span>
      ${may("editor") && html`<button type="button" class="main" onClick=${() => askEndpoint(null, found.reload)}>New endpoint…</button>`}
      <${CopyAs} cli="bellringer webhooks list" path=${PATH} />
    </div>
    <${Loading} of=${found} shape="table">${({ items }) => {
      if (!items.length) return html`<${Empty} title="No webhook endpoints">
        <p>An endpoint is a URL that receives events: failed, dead, late, recovered and others.</p>
        <p><${Command} text="bellringer webhooks create https://example.com/hook --kind dead --kind recovered" /></p><//>`;
      const one = items.find((endpoint) => endpoint.endpoint_id === chosen);
      return html`<${Table} caption="Webhook endpoints" columns=${COLUMNS(found.reload)} rows=${items} id=${(endpoint) => endpoint.endpoint_id} open=${open} />
        ${one && html`<${Deliveries} key=${one.endpoint_id} of=${one} />`}`;
    }}<//>`;
}

const COLUMNS = (reload) => [
  { name: "URL", phone: "title", cell: (one) => html`<code class="clip long" title=${`${one.url} (${one.endpoint_id})`}>${one.url}</code>${one.description && html`<span class="mute endpoint-description">${one.description}</span>`}` },
  { name: "State", class: "tight", phone: "side", cell: (one) => html`<${State} of=${one.enabled ? "active" : "disabled"}
    title=${one.disabled_reason} />${one.disabled_reason && html` <span class="mute">${one.disabled_reason}</span>`}` },
  { name: "Events", phone: "line", cell: (one) => (one.kinds.length ? one.kinds.join(", ").replaceAll("_", " ") : "all events") },
  { name: "Changed", class: "tight", phone: "line", short: "· changed", cell: (one) => html`<${Time} at=${one.changed_at} />` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight acts", phone: "full", cell: (one) => html`<span class="row-actions">
      <${Link} class="button small" to="settings" terms=${{ tab: "webhooks", endpoint: one.endpoint_id }}
        aria-label=${`Deliveries to ${one.url}`}>Deliveries<//>
      ${may("operator") && html`<button type="button" class="quiet" disabled=${!one.enabled} title=${one.enabled ? "Send a test event" : "The endpoint is disabled"} aria-label=${`Test ${one.url}`}
        onClick=${() => test(one)}>Test</button>`}
      ${may("editor") && html`<${Menu} label=${`More: ${one.url}`} items=${[
        { text: "Edit…", icon: "edit", act: () => askEndpoint(one, reload) },
        { text: one.enabled ? "Disable" : "Enable", icon: one.enabled ? "pause" : "resume", act: () => setEnabled(one, !one.enabled, reload) },
        { text: "Rotate secret…", icon: "key", act: () => askSecret(one, reload) },
        { text: "Copy the id", icon: "copy", act: () => copy(one.endpoint_id).then(() => notify(`Copied ${one.endpoint_id}`)) },
        "-",
        { text: "Delete…", icon: "trash", tone: "bad", act: () => remove(one, reload) },
      ]} />`}</span>` },
];

async function test(one) {
  if (await perform(() => post(`${pathOf(one)}/test`), `Sent a test to ${one.url}`)) navigate("settings", { tab: "webhooks", endpoint: one.endpoint_id });
}

async function setEnabled(one, enabled, reload) {
  const to = (value) => request("PATCH", pathOf(one), { body: { enabled: value } }).then(reload);
  await perform(() => to(enabled), `${enabled ? "Enabled" : "Disabled"} ${one.url}`, { undo: () => to(!enabled) });
}

function remove(one, reload) {
  confirm({
    title: `Delete endpoint ${one.endpoint_id}?`,
    verb: `Delete ${one.endpoint_id}`,
    note: `${one.url} receives no more events; pending deliveries are cancelled.`,
    act: () => {
      setQuery({ endpoint: "" }); // first, or the list of its deliveries would be loaded once more and fail
      return request("DELETE", pathOf(one)).then(reload);
    },
    done: `Deleted endpoint ${one.endpoint_id}`,
  });
}

function askSecret(one, reload) {
  openDialog(`Rotate the secret of ${one.url}`, function Rotate({ close }) {
    const [made, setMade] = useState(null);
    async function act() {
      setMade(await post(`${pathOf(one)}/rotate-secret`, {}));
      reload();
    }
    if (made) return html`<${Secret} title="Signing secret" text=${made.new_secret} close=${close} />`;
    return html`<${DialogForm} close=${close} verb="Rotate secret"
      act=${act}>${() => html`<p>For one day requests are signed with both secrets, so that the receiver can switch.</p>`}<//>`;
  });
}

/** Creates or edits an endpoint. */
function askEndpoint(one, reload) {
  openDialog(one ? `Edit ${one.endpoint_id}` : "New webhook endpoint", function Endpoint({ close }) {
    const [asked, setAsked] = useState({ url: one?.url ?? "", kinds: one?.kinds ?? [], description: one?.description ?? "" });
    const [made, setMade] = useState(null);
    const flip = (kind) => setAsked({ ...asked, kinds: asked.kinds.includes(kind) ? asked.kinds.filter((other) => other !== kind) : [...asked.kinds, kind] });
    async function act() {
      if (one) {
        await request("PATCH", pathOf(one), { body: asked });
        reload();
        return true;
      }
      setMade(await post(PATH, asked));
      return void reload();
    }
    if (made) return html`<${Secret} title="Signing secret" text=${made.new_secret} close=${close} />`;
    return html`<${DialogForm} close=${close} verb=${one ? "Save" : "Create endpoint"} act=${act} ready=${asked.url}>${(faults) => html`
      <${TextField} label="URL" type="url" mono=${true} hint="https and a public address" value=${asked.url} set=${(url) => setAsked({ ...asked, url })}
        faults=${faultsAt(faults, "/url")} required />
      <fieldset><legend>Events <span class="mute">(none selected: all)</span></legend>
        ${Object.entries(KINDS).map(([kind, text]) => html`<p><label><input type="checkbox" checked=${asked.kinds.includes(kind)}
          onChange=${() => flip(kind)} /> ${kind} <span class="mute">${text}</span></label></p>`)}</fieldset>
      <${TextField} label="Description" value=${asked.description} set=${(description) => setAsked({ ...asked, description })}
        faults=${faultsAt(faults, "/description")} />`}<//>`;
  });
}

// Deliveries

const MAX_FILTERED = 200; // deliveries that a filter looks at
const hasFailed = (one) => one.state === "dead" || (one.error !== null && one.state !== "succeeded");
const isPending = (one) => ["queued", "running", "retrying", "blocked"].includes(one.state);
const FITS = { failed: hasFailed, pending: isPending };

const OUTCOMES = { succeeded: "delivered", dead: "gave up", queued: "waiting", running: "sending" };

/** What became of a delivery; apart from the event itself, which often has a failure as its subject. */
function Outcome({ of }) {
  if (!of.state) return html`<span class="mute">deleted by retention</span>`;
  const [icon, tone] = look(of.state);
  return html`<span class="state tone-${tone}"><${Icon} name=${icon} /> ${OUTCOMES[of.state] ?? of.state}</span>`;
}

/** What the event is about: a run of a job or task, a job, or nothing for a test. */
function About({ of }) {
  const { job, job_id: jobId, run_id: run, task, checkin } = of.payload?.data ?? {};
  if (of.event_id === null) return html`<span class="mute">test event</span>`;
  const name = job ?? task ?? checkin;
  if (run) return html`<${Link} to=${`runs/${part(run)}`} title="Open the run of this event">${name ?? "run"}<//>`;
  if (job && jobId) return html`<${Link} to=${`jobs/${part(jobId)}`} title="Open the job of this event">${job}<//>`;
  return name ?? html`<span class="mute">–</span>`;
}

const DELIVERIES = (rows, reload, opened, toggle) => [
  { name: "Event", class: "tight", phone: "side", cell: (one) => html`<${State} of=${one.kind} title=${KINDS[one.kind]} />` },
  { name: "About", phone: "title", cell: (one) => html`<${About} of=${one} />` },
  { name: "Delivery", class: "tight", phone: "line", cell: (one) => html`<${Outcome} of=${one} />` },
  { name: "HTTP", class: "number", phone: "line", short: "· HTTP", title: "status of the last response", cell: (one) => one.status && html`<span class=${one.status < 300 ? "" : "tone-bad"}>${one.status}</span>` },
  { name: "Took", class: "number", phone: "line", short: "·", title: "time of the last attempt", cell: (one) => one.seconds !== null && formatDuration(one.seconds) },
  { name: "Attempts", class: "number", phone: "line", short: "· attempts", cell: (one) => one.attempt },
  { name: "Next attempt", class: "tight later", phone: "line", short: "· next", cell: (one) => one.next_attempt_at && html`<${Time} at=${one.next_attempt_at} />` },
  { name: "Sent", class: "tight", phone: "line", short: "·", cell: (one) => html`<${Time} at=${one.made_at} />` },
  rows.some((one) => one.error) && { name: "Error", phone: "full", cell: (one) => one.error && html`<span class="clip tone-bad" title=${one.error}>${one.error}</span>` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight acts", phone: "full", cell: (one) => html`<span class="row-actions">
      <button type="button" class="quiet" aria-expanded=${opened.has(one.delivery_id)} aria-label=${`Details of ${one.delivery_id}`} onClick=${() => toggle(one)}>
        <${Icon} name=${opened.has(one.delivery_id) ? "chevron-down" : "chevron-right"} /> Details</button>
      ${may("operator") && html`<button type="button" class="quiet" aria-label=${`Send ${one.delivery_id} again`} onClick=${() => resend(one, reload)}>Send again</button>`}</span>` },
].filter(Boolean);

async function resend(one, reload) {
  await perform(() => post(`deliveries/${part(one.delivery_id)}/replay`).then(reload), `Sending ${one.delivery_id} again`);
}

/** A delivery in full: what was sent, what came back, and the run that sends it, with all attempts. */
function Delivery({ of }) {
  return html`<div class="entry"><div><h3>Payload</h3>${of.payload ? html`<${Json} value=${of.payload} label=${`Payload of ${of.delivery_id}`} />`
      : html`<p class="mute">deleted by retention</p>`}</div>
    <div><h3>Response</h3>${of.response ? html`<pre class="json" tabindex="0" aria-label=${`Response to ${of.delivery_id}`}>${of.response}</pre>`
      : html`<p class="mute">${of.status ? `HTTP ${of.status} without a body` : of.error ?? "none yet"}</p>`}
      <${DescriptionList} of=${[
        ["Delivery", html`<code>${of.delivery_id}</code>`], of.replay_of && ["Repeats", html`<code>${of.replay_of}</code>`],
        ["Event", of.event_id === null ? "a test" : html`${KINDS[of.kind] ?? of.kind} <span class="mute">(id ${of.event_id})</span>`], ["Sent", formatTime(of.made_at)],
        ["Attempts", of.state ? html`<${Link} to=${`runs/${part(of.run_id)}`}>${of.attempt ?? 0}, with their logs<//>` : "–"],
        of.next_attempt_at && ["Next attempt", formatTime(of.next_attempt_at)],
      ]} /></div></div>`;
}

function Deliveries({ of }) {
  const [wanted, setWanted] = useState(PAGE);
  const [opened, setOpened] = useState(() => new Set());
  const path = `${pathOf(of)}/deliveries`;
  const shown = query.value.get("deliveries") ?? "";
  const found = useData((stop) => fetchPages(path, {}, shown ? MAX_FILTERED : wanted, stop), [path, wanted, Boolean(shown)]);
  function toggle(one) {
    const next = new Set(opened);
    if (!next.delete(one.delivery_id)) next.add(one.delivery_id);
    setOpened(next);
  }
  return html`<section class="deliveries" aria-labelledby="deliveries"><div class="head"><h2 id="deliveries">Deliveries <span class="mute">to ${of.url}</span></h2><span class="gap"></span>
      <${CopyAs} cli=${`bellringer webhooks deliveries ${of.endpoint_id}`} path=${path} /><button type="button" class="quiet"
        onClick=${() => setQuery({ endpoint: "", deliveries: "" })}><${Icon} name="close" /> Close</button></div>
    <${Loading} of=${found} shape="table">${(data) => {
      if (!data.items.length) return html`<${Empty} title="No deliveries yet"><p>Send a test:</p><p><${Command} text=${`bellringer webhooks test ${of.endpoint_id}`} /></p><//>`;
      const rows = shown in FITS ? data.items.filter(FITS[shown]) : data.items;
      const counts = Object.fromEntries(Object.entries(FITS).map(([name, fits]) => [name, data.items.filter(fits).length]));
      return html`<div class="tools"><${Segments} name="deliveries" label="Show" of=${{ all: "All", failed: `Failed (${counts.failed})`, pending: `Pending (${counts.pending})` }} usual="all" />
          <span class="mute">of the last ${data.items.length.toLocaleString("en")}</span></div>
        ${rows.length ? html`<${Table} caption=${`Deliveries to ${of.url}`} kind="deliveries" columns=${DELIVERIES(rows, found.reload, opened, toggle)} rows=${rows} id=${(one) => one.delivery_id}
          open=${toggle} detail=${(one) => opened.has(one.delivery_id) && html`<${Delivery} of=${one} />`} />`
          : html`<p class="mute">None of the last ${data.items.length.toLocaleString("en")} deliveries ${shown === "failed" ? "has failed" : "is pending"}.</p>`}
        ${!shown && html`<${MoreButton} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />`}`;
    }}<//></section>`;
}
