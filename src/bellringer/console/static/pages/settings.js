// Settings: as whom you are here, keys, webhooks, how the server runs and why so, and what this browser keeps.
import { html } from "../lib/html.js";
import { caller, get, may } from "../lib/api.js";
import { rail, shortcuts, theme, zone } from "../lib/kept.js";
import { useData } from "../lib/load.js";
import { narrow, query } from "../lib/place.js";
import { write } from "../lib/json.js";
import { Keys } from "../parts/api_keys.js";
import { Card, CopyAs, Empty, Loading, Tabs } from "../parts/basics.js";
import { Command } from "../parts/command.js";
import { Choice, Search } from "../parts/filters.js";
import { Select, Tick } from "../parts/field.js";
import { Table } from "../parts/table.js";
import { Webhooks } from "../parts/webhooks.js";

const TABS = { keys: "API keys", webhooks: "Webhooks", configuration: "Configuration", browser: "This browser" };
const SHOWN = { keys: ApiKeys, webhooks: Webhooks, configuration: Configuration, browser: Browser };

export default function Settings() {
  const told = useData((stop) => get("version", {}, stop), [], { still: true });
  const who = caller.value;
  const chosen = query.value.get("tab") in TABS ? query.value.get("tab") : "keys";
  const Tab = SHOWN[chosen];
  return html`<header class="head"><h1>Settings</h1></header>
    <p class="lead">Bellringer ${told.data?.version ?? "…"}${who && html` · you are <strong>${who.who}</strong>,
      ${" "}${who.role}${who.everywhere ? " of the whole installation" : ""}, in the tenant <strong>${who.tenant}</strong>
      ${who.scopes.length > 0 && html` · only for ${who.scopes.join(", ")}`}`}</p>
    <${Tabs} tabs=${TABS} chosen=${chosen} choose=${(tab) => narrow({ tab: tab === "keys" ? "" : tab, q: "", source: "", endpoint: "", ended: "" })} />
    <div role="tabpanel" aria-label=${TABS[chosen]}><${Tab} key=${chosen} /></div>`;
}

function ApiKeys() {
  if (!may("admin")) return html`<${NotYours} what="Keys" />`;
  return html`<${Card} title=${`Keys of the tenant ${caller.value.tenant}`} wide=${true}><${Keys} /><//>
    ${caller.value.everywhere && html`<${Card} title="Keys of the whole installation" wide=${true}><p
      class="mute">They act in every tenant: the one that <code>X-Tenant</code> names, or default.</p><${Keys} everywhere=${true} /><//>`}`;
}

const NotYours = ({ what, everywhere = false }) => html`<${Empty} title=${`${what} are for administrators${everywhere ? " of the whole installation" : ""}`}>
  <p>You are ${caller.value?.role ?? "not known yet"}. Who may, makes a key for you:</p><p><${Command}
    text=${`bellringer keys create NAME --role admin${everywhere ? " --everywhere" : ""}`} /></p><//>`;

// Configuration

const SOURCES = { default: "default", file: "file", environment: "environment", flag: "flag" };
const shown = (setting) => (setting.value === null ? html`<span class="mute">none</span>` : setting.secret ? html`<span
  class="mute">${setting.value}</span>` : html`<code>${typeof setting.value === "string" ? setting.value : write(setting.value)}</code>`);
const COLUMNS = [
  { name: "Setting", class: "tight", cell: (setting) => html`<code>${setting.name}</code>` },
  { name: "Value", cell: shown },
  { name: "From", class: "tight", cell: (setting) => (setting.source === "default" ? html`<span
    class="mute">default</span>` : html`<strong>${setting.source}</strong>`) },
  { name: "Where", cell: (setting) => html`<code>${setting.where}</code>` },
];

function Configuration() {
  if (!(may("admin") && caller.value.everywhere)) return html`<${NotYours} what="The server's settings" everywhere=${true} />`;
  return html`<${Effective} />`;
}

function Effective() {
  const found = useData((stop) => get("settings", {}, stop), [], { still: true });
  const [text, source] = [query.value.get("q") ?? "", query.value.get("source")];
  const fits = (setting) => (!source || setting.source === source) && `${setting.name} ${setting.where}`.toLowerCase().includes(text.toLowerCase());
  return html`<div class="tools"><${Search} label="Search the settings" /><${Choice} name="source" label="From" of=${SOURCES} /><span
    class="gap"></span><${CopyAs} cli="bellringer settings" path="settings" /></div>
    <${Loading} of=${found}>${({ items }) => {
      const rows = items.filter(fits);
      const set = items.filter((setting) => setting.source !== "default").length;
      const differ = set ? `${set} of ${items.length} settings differ from their defaults` : `All ${items.length} settings are the defaults`;
      return html`<p class="mute">${differ}. The server that answered runs with these; secrets are only said to be set.</p>
        ${rows.length ? html`<${Table} caption="Effective configuration" columns=${COLUMNS} rows=${rows}
          id=${(setting) => setting.name} />` : html`<${Empty} title="No setting fits"><p><button type="button"
          onClick=${() => narrow({ q: "", source: "" })}>Show all</button></p><//>`}`;
    }}<//>`;
}

// This browser

function Browser() {
  return html`<${Card} title="How it looks and listens" wide=${true}><div class="fields">
      <${Select} label="Theme" of=${{ system: "as the system has it", light: "light", dark: "dark" }} value=${theme.value}
        set=${(value) => (theme.value = value)} />
      <${Select} label="Times are shown" of=${{ local: "in my zone", utc: "in UTC", job: "in the job's zone" }} value=${zone.value}
        set=${(value) => (zone.value = value)} />
      <${Select} label="Menu" of=${{ wide: "wide", narrow: "folded" }} value=${rail.value} set=${(value) => (rail.value = value)} />
      <${Tick} label="Keys of one letter do something" hint="? shows them; Ctrl K and Escape always work" value=${shortcuts.value === "on"}
        set=${(on) => (shortcuts.value = on ? "on" : "off")} />
    </div><p class="mute">Kept in this browser alone. The key that you log in by is kept for this tab, and gone when it is closed.</p><//>`;
}
