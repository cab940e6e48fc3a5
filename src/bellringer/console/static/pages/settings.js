// Settings: the caller, API keys, webhooks, effective configuration, preferences of this browser.
import { html } from "../lib/html.js";
import { caller, get, may } from "../lib/api.js";
import { rail, shortcuts, theme, zone } from "../lib/preferences.js";
import { keyNames } from "../lib/shortcuts.js";
import { useData } from "../lib/page_data.js";
import { setQuery, query } from "../lib/router.js";
import { write } from "../lib/json.js";
import { Keys } from "../parts/api_keys.js";
import { Card, CopyAs, Empty, Loading, Tabs } from "../parts/elements.js";
import { Command } from "../parts/copyable_command.js";
import { NotificationPreference } from "../parts/browser_notifications.js";
import { Choice, Search } from "../parts/filters.js";
import { SelectField, Checkbox } from "../parts/field.js";
import { GROUPS, aboutSetting, groupOf } from "../parts/setting_groups.js";
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
    <p class="lead">Bellringer ${version.data?.version ?? "…"}${who && html` · signed in as <strong>${who.who}</strong> (${who.everywhere ? `installation ${who.role}` : who.role})
      ${" "}· tenant <strong>${who.tenant}</strong>
      ${who.scopes.length > 0 && html` · scopes: ${who.scopes.join(", ")}`}`}</p>
    <${Tabs} tabs=${TABS} chosen=${chosen} choose=${(tab) => setQuery({ tab: tab === "keys" ? "" : tab, q: "", source: "", endpoint: "", deliveries: "", ended: "" })} />
    <div role="tabpanel" aria-label=${TABS[chosen]}><${Tab} key=${chosen} /></div>`;
}

function ApiKeys() {
  if (!may("admin")) return html`<${AdminOnly} what="manage keys" />`;
  return html`<${Keys} title=${`API keys for tenant ${caller.value.tenant}`} main=${true} />
    ${caller.value.everywhere && html`<${Keys} title="Installation keys" everywhere=${true}><p
      class="mute">Valid for every tenant. The header <code>X-Tenant</code> of a request selects the tenant; without it, the tenant is “default”.</p><//>`}`;
}

const AdminOnly = ({ what, everywhere = false }) => html`<${Empty} title=${`Only administrators${everywhere ? " of the installation" : ""} can ${what}`}>
  <p>Your role is ${caller.value?.role ?? "unknown"}. An administrator can create a key for you:</p><p><${Command}
    text=${`bellringer keys create NAME --role admin${everywhere ? " --everywhere" : ""}`} /></p><//>`;

// Configuration

const SOURCES = { default: "default", file: "file", environment: "environment", flag: "flag", dev: "bellringer dev" };
const ROLES = { api: "the API and console", scheduler: "a scheduler", http_worker: "a worker for HTTP jobs" };
const isUnset = ({ value }) => value === null || value === "" || value === "not set" || (Array.isArray(value) && value.length === 0);

function Value({ of }) {
  if (isUnset(of)) return html`<span class="mute">not set</span>`;
  if (of.secret) return html`<span class="mute">set, hidden</span>`;
  if (typeof of.value === "boolean") return of.value ? "yes" : "no";
  return html`<code>${Array.isArray(of.value) ? of.value.join(", ") : typeof of.value === "string" ? of.value : write(of.value)}</code>`;
}

const COLUMNS = [
  { name: "Setting", class: "setting-cell", phone: "title", cell: (setting) => html`<code>${setting.name}</code><span class="mute setting-about">${aboutSetting(setting.name)}</span>` },
  { name: "Value", class: "setting-value", phone: "full", cell: (setting) => html`<${Value} of=${setting} />` },
  { name: "Set by", class: "setting-source", phone: "full", cell: (setting) => (setting.source === "default" ? html`<span class="mute">default</span>`
    : html`${SOURCES[setting.source] ?? setting.source}${setting.where && html` <code class="mute">${setting.where}</code>`}`) },
];

function Configuration() {
  if (!(may("admin") && caller.value.everywhere)) return html`<${AdminOnly} what="view the server configuration" everywhere=${true} />`;
  return html`<${EffectiveSettings} />`;
}

function EffectiveSettings() {
  const found = useData((stop) => get("settings", {}, stop), [], { once: true });
  const [text, source] = [query.value.get("q") ?? "", query.value.get("source")];
  const fits = (setting) => (!source || setting.source === source) && `${setting.name} ${setting.where} ${aboutSetting(setting.name)}`.toLowerCase().includes(text.toLowerCase());
  return html`<div class="tools"><${Search} label="Search settings" /><${Choice} name="source" label="Set by" of=${SOURCES} /><span
    class="gap"></span><${CopyAs} cli="bellringer settings" path="settings" /></div>
    <${Loading} of=${found} shape="table">${({ items, process }) => {
      const rows = items.filter(fits);
      const changed = rows.filter((setting) => setting.source !== "default");
      const groups = Map.groupBy(rows.filter((setting) => setting.source === "default"), (setting) => groupOf(setting.name));
      const ordered = [...Object.keys(GROUPS), "Other"].filter((group) => groups.has(group));
      return html`${process && html`<${Process} of=${process} />`}
        ${rows.length === 0 && html`<${Empty} title="No matching settings"><p><button type="button"
          onClick=${() => setQuery({ q: "", source: "" })}>Show all</button></p><//>`}
        ${changed.length > 0 && html`<h2 class="section">Set explicitly <span class="mute">${changed.length} of ${items.length}</span></h2>
          <${Table} caption="Effective configuration" kind="settings" columns=${COLUMNS} rows=${changed} id=${(setting) => setting.name} />`}
        ${ordered.length > 0 && html`<h2 class="section">At their defaults</h2>`}
        <div class="setting-groups">${ordered.map((group) => html`<details key=${group} class="card setting-group" open=${Boolean(text || source)}><summary>${group} <span class="mute">${groups.get(group).length} ${groups.get(group).length === 1 ? "setting" : "settings"}</span></summary>
          <${Table} caption=${`Defaults: ${group}`} kind="settings" columns=${COLUMNS.slice(0, 2)} rows=${groups.get(group)} id=${(setting) => setting.name} /></details>`)}</div>`;
    }}<//>`;
}

/** The process whose settings are shown: behind a load balancer, the next request may reach another one. */
function Process({ of }) {
  return html`<p class="lead">This server: <code>${of.host}</code>, process <code>${of.pid}</code>, runs ${new Intl.ListFormat("en").format(of.roles.map((one) => ROLES[one] ?? one))}.
    ${" "}<span class="mute">Other processes may use different settings.</span></p>`;
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
