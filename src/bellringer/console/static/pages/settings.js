// Settings: the caller, API keys, webhooks, effective configuration, preferences of this browser.
import { html } from "../lib/html.js";
import { caller, get, may } from "../lib/api.js";
import { rail, shortcuts, theme, zone } from "../lib/preferences.js";
import { keyNames } from "../lib/shortcuts.js";
import { useData } from "../lib/page_data.js";
import { setQuery, query } from "../lib/router.js";
import { write } from "../lib/json.js";
import { Keys } from "../parts/api_keys.js";
import { Card, CopyAs, DescriptionList, Empty, Loading, Tabs } from "../parts/elements.js";
import { Command } from "../parts/copyable_command.js";
import { NotificationPreference } from "../parts/browser_notifications.js";
import { Choice, Search } from "../parts/filters.js";
import { SelectField, Checkbox } from "../parts/field.js";
import { Table } from "../parts/table.js";
import { Webhooks } from "../parts/webhooks.js";

const TABS = { keys: "API keys", webhooks: "Webhooks", configuration: "Configuration", browser: "This browser" };
const SHOWN = { keys: ApiKeys, webhooks: Webhooks, configuration: Configuration, browser: Browser };

export default function Settings() {
  const version = useData((stop) => get("version", {}, stop), [], { once: true });
  const who = caller.value;
  const chosen = query.value.get("tab") in TABS ? query.value.get("tab") : "keys";
  const Tab = SHOWN[chosen];
  return html`<header class="head"><h1>Settings</h1></header>
    <p class="lead">Bellringer ${version.data?.version ?? "…"}${who && html` · logged in as <strong>${who.who}</strong>,
      ${" "}role ${who.role}${who.everywhere ? " for the installation" : ""}, tenant <strong>${who.tenant}</strong>
      ${who.scopes.length > 0 && html` · scopes: ${who.scopes.join(", ")}`}`}</p>
    <${Tabs} tabs=${TABS} chosen=${chosen} choose=${(tab) => setQuery({ tab: tab === "keys" ? "" : tab, q: "", source: "", endpoint: "", ended: "" })} />
    <div role="tabpanel" aria-label=${TABS[chosen]}><${Tab} key=${chosen} /></div>`;
}

function ApiKeys() {
  if (!may("admin")) return html`<${AdminOnly} what="manage keys" />`;
  return html`<${Card} title=${`Keys of tenant ${caller.value.tenant}`} wide=${true}><${Keys} /><//>
    ${caller.value.everywhere && html`<${Card} title="Installation keys" wide=${true}><p
      class="mute">They are valid for every tenant: the one in <code>X-Tenant</code>, or default.</p><${Keys} everywhere=${true} /><//>`}`;
}

const AdminOnly = ({ what, everywhere = false }) => html`<${Empty} title=${`Only administrators${everywhere ? " of the installation" : ""} can ${what}`}>
  <p>Your role is ${caller.value?.role ?? "unknown"}. An administrator can create a key for you:</p><p><${Command}
    text=${`bellringer keys create NAME --role admin${everywhere ? " --everywhere" : ""}`} /></p><//>`;

// Configuration

const SOURCES = { default: "default", file: "file", environment: "environment", flag: "flag", dev: "bellringer dev" };
const ROLES = { api: "API and console", scheduler: "scheduler", http_worker: "worker for HTTP jobs" };
const shown = (setting) => (setting.value === null ? html`<span class="mute">none</span>` : setting.secret ? html`<span
  class="mute">${setting.value}</span>` : html`<code>${typeof setting.value === "string" ? setting.value : write(setting.value)}</code>`);
const COLUMNS = [
  { name: "Setting", class: "tight", cell: (setting) => html`<code>${setting.name}</code>` },
  { name: "Value", cell: shown },
  { name: "Source", class: "tight", cell: (setting) => (setting.source === "default" ? html`<span
    class="mute">default</span>` : html`<strong>${SOURCES[setting.source] ?? setting.source}</strong>`) },
  { name: "Location", class: "tight", cell: (setting) => setting.where && html`<code>${setting.where}</code>` },
];

function Configuration() {
  if (!(may("admin") && caller.value.everywhere)) return html`<${AdminOnly} what="view the server configuration" everywhere=${true} />`;
  return html`<${EffectiveSettings} />`;
}

function EffectiveSettings() {
  const found = useData((stop) => get("settings", {}, stop), [], { once: true });
  const [text, source] = [query.value.get("q") ?? "", query.value.get("source")];
  const fits = (setting) => (!source || setting.source === source) && `${setting.name} ${setting.where}`.toLowerCase().includes(text.toLowerCase());
  return html`<div class="tools"><${Search} label="Search settings" /><${Choice} name="source" label="Source" of=${SOURCES} /><span
    class="gap"></span><${CopyAs} cli="bellringer settings" path="settings" /></div>
    <${Loading} of=${found} shape="table">${({ items, process }) => {
      const rows = items.filter(fits);
      const set = items.filter((setting) => setting.source !== "default").length;
      const differ = set ? `${set} of ${items.length} settings are set explicitly` : `All ${items.length} settings have their default values`;
      return html`${process && html`<${Process} of=${process} />`}
        <p class="mute">${differ}. Values of secrets are not shown.</p>
        ${rows.length ? html`<${Table} caption="Effective configuration" columns=${COLUMNS} rows=${rows}
          id=${(setting) => setting.name} />` : html`<${Empty} title="No matching settings"><p><button type="button"
          onClick=${() => setQuery({ q: "", source: "" })}>Show all</button></p><//>`}`;
    }}<//>`;
}

/** The process whose settings are shown: behind a load balancer, the next request may reach another one. */
function Process({ of }) {
  return html`<${Card} title="This process" wide=${true}><${DescriptionList} of=${[
      ["Host", html`<code>${of.host}</code>`],
      ["Process id", html`<code>${of.pid}</code>`],
      ["Runs", of.roles.map((one) => ROLES[one] ?? one).join(", ")],
    ]} /><p class="mute">The process that handled this request. Other processes of the installation may have other settings.</p><//>`;
}

// This browser

function Browser() {
  return html`<${Card} title="Preferences" wide=${true}><div class="fields">
      <${SelectField} label="Theme" of=${{ system: "system", light: "light", dark: "dark" }} value=${theme.value}
        set=${(value) => (theme.value = value)} />
      <${SelectField} label="Time zone" of=${{ local: "local", utc: "UTC", job: "of the job" }} value=${zone.value}
        set=${(value) => (zone.value = value)} />
      <${SelectField} label="Menu" of=${{ wide: "expanded", narrow: "collapsed" }} value=${rail.value} set=${(value) => (rail.value = value)} />
      <${Checkbox} label="Enable single-key shortcuts" hint=${`press ? to list them; ${keyNames("Mod+K").join(" ")} and ${keyNames("Escape").join(" ")} always work`}
        value=${shortcuts.value === "on"} set=${(on) => (shortcuts.value = on ? "on" : "off")} />
      <${NotificationPreference} />
    </div><p class="mute">Stored in this browser only. Your API key is stored for this tab and deleted when you close it.</p><//>`;
}
