// Webhook endpoints: who is told of events, what was sent to them, and what became of it.
import { html, useState } from "../lib/html.js";
import { ask, get, may, part, post } from "../lib/api.js";
import { useData } from "../lib/load.js";
import { gather } from "../lib/pages.js";
import { go, narrow, query } from "../lib/place.js";
import { Ask } from "./ask.js";
import { CopyAs, Empty, Link, Loading, More, When } from "./basics.js";
import { Command } from "./command.js";
import { attempt, confirm, show } from "./dialog.js";
import { Text, faultsAt } from "./field.js";
import { Secret } from "./secret.js";
import { State } from "./state.js";
import { Table } from "./table.js";

const KINDS = {
  failed: "an attempt failed", dead: "a run gave up", late: "a run is late", missed: "occurrences got no run", slow: "a run takes too long",
  outgrown: "a job takes longer than its interval", recovered: "all is well again",
};
const PATH = "webhook-endpoints";
const PAGE = 25;
const pathOf = (endpoint) => `${PATH}/${part(endpoint.endpoint_id)}`;

export function Webhooks() {
  const found = useData((stop) => get(PATH, { limit: 200 }, stop), [], { still: true });
  const chosen = query.value.get("endpoint");
  const open = (endpoint) => narrow({ endpoint: endpoint.endpoint_id });
  return html`<div class="tools">
      ${may("editor") && html`<button type="button" class="main" onClick=${() => askEndpoint(null, found.again)}>New endpoint …</button>`}
      <span class="gap"></span><${CopyAs} cli="bellringer webhooks list" path=${PATH} />
    </div>
    <${Loading} of=${found}>${({ items }) => {
      if (!items.length) return html`<${Empty} title="Nobody is told of events">
        <p>An endpoint is a URL that hears when something fails, dies, is late, and when it has recovered.</p>
        <p><${Command} text="bellringer webhooks create https://example.com/hook --kind dead --kind recovered" /></p><//>`;
      const one = items.find((endpoint) => endpoint.endpoint_id === chosen);
      return html`<${Table} caption="Webhook endpoints" columns=${COLUMNS(found.again)} rows=${items} id=${(endpoint) => endpoint.endpoint_id} open=${open} />
        ${one && html`<${Deliveries} key=${one.endpoint_id} of=${one} />`}`;
    }}<//>`;
}

const COLUMNS = (again) => [
  { name: "State", class: "tight", cell: (one) => html`<${State} of=${one.enabled ? "active" : "disabled"}
    title=${one.disabled_reason} />${one.disabled_reason && html` <span class="mute">${one.disabled_reason}</span>`}` },
  { name: "URL", cell: (one) => html`<code class="clip" title=${one.url}>${one.url}</code> <span class="mute">${one.endpoint_id}</span>` },
  { name: "Hears of", cell: (one) => (one.kinds.length ? one.kinds.join(", ") : html`<span class="mute">everything</span>`) },
  { name: "For", cell: (one) => html`<span class="clip" title=${one.description}>${one.description}</span>` },
  { name: "Changed", class: "tight", cell: (one) => html`<${When} at=${one.changed_at} />` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight acts", cell: (one) => html`<span class="row-actions">
      <${Link} class="button quiet" to="settings" terms=${{ tab: "webhooks", endpoint: one.endpoint_id }}
        aria-label=${`Deliveries to ${one.url}`}>Deliveries<//>
      ${may("operator") && html`<button type="button" class="quiet" disabled=${!one.enabled} aria-label=${`Test ${one.url}`}
        onClick=${() => test(one)}>Test</button>`}
      ${may("editor") && html`<button type="button" class="quiet icon" aria-label=${`More: ${one.url}`} title="More" onClick=${() => more(one, again)}>
        <span aria-hidden="true">⋯</span></button>`}</span>` },
];

function more(one, again) {
  show(one.url, function Menu({ close }) {
    const act = (text, does) => html`<li><button type="button" onClick=${() => { close(); does(); }}>${text}</button></li>`;
    return html`<ul class="menu">
      ${act("Edit …", () => askEndpoint(one, again))}${act(one.enabled ? "Switch off" : "Switch on", () => turn(one, !one.enabled, again))}
      ${act("New secret …", () => askSecret(one, again))}${act("Delete …", () => remove(one, again))}
    </ul><div class="actions"><button type="button" autofocus onClick=${close}>Close</button></div>`;
  });
}

async function test(one) {
  if (await attempt(() => post(`${pathOf(one)}/test`), `a test is on its way to ${one.url}`)) go("settings", { tab: "webhooks", endpoint: one.endpoint_id });
}

async function turn(one, enabled, again) {
  const to = (value) => ask("PATCH", pathOf(one), { body: { enabled: value } }).then(again);
  await attempt(() => to(enabled), `${one.url} ${enabled ? "is told of events again" : "is told nothing"}`, { undo: () => to(!enabled) });
}

function remove(one, again) {
  confirm({
    title: `Delete the endpoint ${one.endpoint_id}?`,
    verb: `Delete ${one.endpoint_id}`,
    note: `${one.url} is told nothing more; what is still on its way to it is given up.`,
    act: () => ask("DELETE", pathOf(one)).then(again),
    done: `${one.url} is told nothing more`,
  });
}

function askSecret(one, again) {
  show(`A new secret for ${one.url}`, function Rotate({ close }) {
    const [made, tell] = useState(null);
    async function act() {
      tell(await post(`${pathOf(one)}/rotate-secret`, {}));
      again();
    }
    if (made) return html`<${Secret} title="The secret that signs what is sent" text=${made.new_secret} close=${close} />`;
    return html`<${Ask} close=${close} verb="Make a new secret"
      act=${act}>${() => html`<p>For a day the old one signs along, so that the receiver can change over.</p>`}<//>`;
  });
}

/** A new endpoint, or another URL and other kinds for one that is there. */
function askEndpoint(one, again) {
  show(one ? `Change ${one.endpoint_id}` : "New webhook endpoint", function Endpoint({ close }) {
    const [asked, set] = useState({ url: one?.url ?? "", kinds: one?.kinds ?? [], description: one?.description ?? "" });
    const [made, tell] = useState(null);
    const flip = (kind) => set({ ...asked, kinds: asked.kinds.includes(kind) ? asked.kinds.filter((other) => other !== kind) : [...asked.kinds, kind] });
    async function act() {
      if (one) {
        await ask("PATCH", pathOf(one), { body: asked });
        again();
        return true;
      }
      tell(await post(PATH, asked));
      return void again();
    }
    if (made) return html`<${Secret} title="The secret that signs what is sent" text=${made.new_secret} close=${close} />`;
    return html`<${Ask} close=${close} verb=${one ? "Save" : "Make the endpoint"} act=${act} ready=${asked.url}>${(faults) => html`
      <${Text} label="URL" type="url" mono=${true} hint="https, at a public address" value=${asked.url} set=${(url) => set({ ...asked, url })}
        faults=${faultsAt(faults, "/url")} required />
      <fieldset><legend>Hears of <span class="mute">(none: everything)</span></legend>
        ${Object.entries(KINDS).map(([kind, text]) => html`<p><label><input type="checkbox" checked=${asked.kinds.includes(kind)}
          onChange=${() => flip(kind)} /> ${kind} <span class="mute">${text}</span></label></p>`)}</fieldset>
      <${Text} label="What it is for" value=${asked.description} set=${(description) => set({ ...asked, description })}
        faults=${faultsAt(faults, "/description")} />`}<//>`;
  });
}

// What was sent

const DELIVERIES = (again) => [
  { name: "State", class: "tight", cell: (one) => (one.state ? html`<${State} of=${one.state} />` : html`<span class="mute">past retention</span>`) },
  { name: "Event", class: "tight", cell: (one) => html`${one.kind}${one.event_id === null ? html` <span class="mute">(a test)</span>` : ""}` },
  { name: "Sent", class: "tight", cell: (one) => html`<${When} at=${one.made_at} />` },
  { name: "Run", class: "tight", cell: (one) => html`<${Link}
    to=${`runs/${part(one.run_id)}`}><code>${one.delivery_id}</code><//>${one.replay_of && html` <span class="mute">again, of ${one.replay_of}</span>`}` },
  { name: "Attempt", class: "number", cell: (one) => one.attempt ?? "–" },
  { name: "Error", cell: (one) => html`<span class="clip" title=${one.error}>${one.error ?? ""}</span>` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight acts", cell: (one) => may("operator") && html`<button type="button" class="quiet"
    aria-label=${`Send ${one.delivery_id} again`} onClick=${() => resend(one, again)}>Send again</button>` },
];

async function resend(one, again) {
  await attempt(() => post(`deliveries/${part(one.delivery_id)}/replay`).then(again), `${one.delivery_id} is sent again`);
}

function Deliveries({ of }) {
  const [wanted, want] = useState(PAGE);
  const path = `${pathOf(of)}/deliveries`;
  const found = useData((stop) => gather(path, {}, wanted, stop), [path, wanted]);
  return html`<section aria-labelledby="deliveries"><div class="tools"><h2 id="deliveries">Sent to ${of.url}</h2><span class="gap"></span>
      <${CopyAs} cli=${`bellringer webhooks deliveries ${of.endpoint_id}`} path=${path} /><button type="button" class="quiet"
        onClick=${() => narrow({ endpoint: "" })}>Close</button></div>
    <${Loading} of=${found}>${(data) => data.items.length === 0
      ? html`<${Empty} title="Nothing was sent yet"><p>A test says whether it arrives.</p><p><${Command}
        text=${`bellringer webhooks test ${of.endpoint_id}`} /></p><//>`
      : html`<${Table} caption=${`Deliveries to ${of.url}`} columns=${DELIVERIES(found.again)} rows=${data.items} id=${(one) => one.delivery_id}
        open=${(one) => go(`runs/${part(one.run_id)}`)} />
        <${More} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => want(wanted + PAGE)} />`}<//></section>`;
}
