// Webhook endpoints and their deliveries.
import { html, useState } from "../lib/html.js";
import { request, get, may, part, post } from "../lib/api.js";
import { useData } from "../lib/page_data.js";
import { fetchPages } from "../lib/pages.js";
import { navigate, setQuery, query } from "../lib/router.js";
import { DialogForm } from "./dialog_form.js";
import { CopyAs, Empty, Link, Loading, MoreButton, Time } from "./elements.js";
import { Command } from "./copyable_command.js";
import { perform, confirm, openDialog } from "./dialog.js";
import { TextField, faultsAt } from "./field.js";
import { Secret } from "./secret.js";
import { State } from "./state_badge.js";
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
  return html`<div class="tools">
      ${may("editor") && html`<button type="button" class="main" onClick=${() => askEndpoint(null, found.reload)}>New endpoint …</button>`}
      <span class="gap"></span><${CopyAs} cli="bellringer webhooks list" path=${PATH} />
    </div>
    <${Loading} of=${found}>${({ items }) => {
      if (!items.length) return html`<${Empty} title="No webhook endpoints">
        <p>An endpoint is a URL that receives events: failed, dead, late, recovered and others.</p>
        <p><${Command} text="bellringer webhooks create https://example.com/hook --kind dead --kind recovered" /></p><//>`;
      const one = items.find((endpoint) => endpoint.endpoint_id === chosen);
      return html`<${Table} caption="Webhook endpoints" columns=${COLUMNS(found.reload)} rows=${items} id=${(endpoint) => endpoint.endpoint_id} open=${open} />
        ${one && html`<${Deliveries} key=${one.endpoint_id} of=${one} />`}`;
    }}<//>`;
}

const COLUMNS = (reload) => [
  { name: "State", class: "tight", cell: (one) => html`<${State} of=${one.enabled ? "active" : "disabled"}
    title=${one.disabled_reason} />${one.disabled_reason && html` <span class="mute">${one.disabled_reason}</span>`}` },
  { name: "URL", cell: (one) => html`<code class="clip" title=${one.url}>${one.url}</code> <span class="mute">${one.endpoint_id}</span>` },
  { name: "Events", cell: (one) => (one.kinds.length ? one.kinds.join(", ") : html`<span class="mute">all</span>`) },
  { name: "Description", cell: (one) => html`<span class="clip" title=${one.description}>${one.description}</span>` },
  { name: "Changed", class: "tight", cell: (one) => html`<${Time} at=${one.changed_at} />` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight acts", cell: (one) => html`<span class="row-actions">
      <${Link} class="button quiet" to="settings" terms=${{ tab: "webhooks", endpoint: one.endpoint_id }}
        aria-label=${`Deliveries to ${one.url}`}>Deliveries<//>
      ${may("operator") && html`<button type="button" class="quiet" disabled=${!one.enabled} aria-label=${`Test ${one.url}`}
        onClick=${() => test(one)}>Test</button>`}
      ${may("editor") && html`<button type="button" class="quiet icon" aria-label=${`More: ${one.url}`} title="More" onClick=${() => more(one, reload)}>
        <span aria-hidden="true">⋯</span></button>`}</span>` },
];

function more(one, reload) {
  openDialog(one.url, function Menu({ close }) {
    const act = (text, does) => html`<li><button type="button" onClick=${() => { close(); does(); }}>${text}</button></li>`;
    return html`<ul class="menu">
      ${act("Edit …", () => askEndpoint(one, reload))}${act(one.enabled ? "Disable" : "Enable", () => setEnabled(one, !one.enabled, reload))}
      ${act("Rotate secret …", () => askSecret(one, reload))}${act("Delete …", () => remove(one, reload))}
    </ul><div class="actions"><button type="button" autofocus onClick=${close}>Close</button></div>`;
  });
}

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

const DELIVERIES = (reload) => [
  { name: "State", class: "tight", cell: (one) => (one.state ? html`<${State} of=${one.state} />` : html`<span class="mute">deleted by retention</span>`) },
  { name: "Event", class: "tight", cell: (one) => html`${one.kind}${one.event_id === null ? html` <span class="mute">(a test)</span>` : ""}` },
  { name: "Sent", class: "tight", cell: (one) => html`<${Time} at=${one.made_at} />` },
  { name: "Run", class: "tight", cell: (one) => html`<${Link}
    to=${`runs/${part(one.run_id)}`}><code>${one.delivery_id}</code><//>${one.replay_of && html` <span class="mute">replay of ${one.replay_of}</span>`}` },
  { name: "Attempt", class: "number", cell: (one) => one.attempt ?? "–" },
  { name: "Error", cell: (one) => html`<span class="clip" title=${one.error}>${one.error ?? ""}</span>` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight acts", cell: (one) => may("operator") && html`<button type="button" class="quiet"
    aria-label=${`Send ${one.delivery_id} again`} onClick=${() => resend(one, reload)}>Send again</button>` },
];

async function resend(one, reload) {
  await perform(() => post(`deliveries/${part(one.delivery_id)}/replay`).then(reload), `Sending ${one.delivery_id} again`);
}

function Deliveries({ of }) {
  const [wanted, setWanted] = useState(PAGE);
  const path = `${pathOf(of)}/deliveries`;
  const found = useData((stop) => fetchPages(path, {}, wanted, stop), [path, wanted]);
  return html`<section aria-labelledby="deliveries"><div class="tools"><h2 id="deliveries">Deliveries to ${of.url}</h2><span class="gap"></span>
      <${CopyAs} cli=${`bellringer webhooks deliveries ${of.endpoint_id}`} path=${path} /><button type="button" class="quiet"
        onClick=${() => setQuery({ endpoint: "" })}>Close</button></div>
    <${Loading} of=${found}>${(data) => data.items.length === 0
      ? html`<${Empty} title="No deliveries yet"><p>Send a test:</p><p><${Command}
        text=${`bellringer webhooks test ${of.endpoint_id}`} /></p><//>`
      : html`<${Table} caption=${`Deliveries to ${of.url}`} columns=${DELIVERIES(found.reload)} rows=${data.items} id=${(one) => one.delivery_id}
        open=${(one) => navigate(`runs/${part(one.run_id)}`)} />
        <${MoreButton} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />`}<//></section>`;
}
