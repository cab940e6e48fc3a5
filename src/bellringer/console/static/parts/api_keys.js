// API keys of a tenant or of the installation. The secret of a key is shown once.
import { html, useState } from "../lib/html.js";
import { request, caller, part } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { useData } from "../lib/page_data.js";
import { setQuery, query } from "../lib/router.js";
import { DialogForm } from "./dialog_form.js";
import { Card, CopyAs, Empty, Loading, Time } from "./elements.js";
import { Command } from "./copyable_command.js";
import { confirm, openDialog } from "./dialog.js";
import { SelectField, TextField, faultsAt } from "./field.js";
import { Secret } from "./secret.js";
import { State } from "./state_badge.js";
import { Table } from "./table.js";

const ROLES = {
  viewer: "viewer: read", operator: "operator: also pause, run, cancel, retry", editor: "editor: also create and change jobs",
  admin: "admin: also manage keys and read the audit log",
};
// Scopes of a key. The server validates them and reports unknown ones at the field.
const SCOPES = [
  "access", "audit", "backfills", "calendars", "cluster", "dead letters", "events", "freezes", "jobs", "operations", "overview", "pools", "runs", "schedules",
  "service", "tasks", "tenants", "webhooks", "workers",
];
const PAGE_LIMIT = 200;

/** API path, headers and CLI options for one kind of keys: {path, headers, cli, who(name)}. */
function kindOf(everywhere, tenant) {
  if (everywhere) return { path: "installation-keys", headers: {}, cli: " --everywhere", who: (name) => `installation-key:${name}` };
  return { path: "api-keys", headers: tenant ? { "X-Tenant": tenant } : {}, cli: tenant ? ` --tenant ${tenant}` : "", who: (name) => `key:${name}` };
}

/** A card with keys. `everywhere`: keys of the installation; `tenant`: a tenant other than the caller's; `main`: creating a key is the main action of the page; `aside`: behind the actions. */
export function Keys({ title, everywhere = false, tenant, main = false, aside, children }) {
  const kind = kindOf(everywhere, tenant);
  const all = query.value.get("ended") === "yes";
  const read = async (stop) => (await request("GET", kind.path, { terms: { limit: PAGE_LIMIT }, signal: stop, extraHeaders: kind.headers })).data;
  const found = useData(read, [kind.path, tenant], { once: true });
  const label = everywhere ? "Installation keys" : `API keys for ${tenant ?? caller.value?.tenant ?? "this tenant"}`;
  const keys = found.data?.items ?? [];
  const shown = keys.filter((key) => all || key.state === "active").toReversed();
  const endless = shown.filter((key) => key.state === "active" && !key.expires_at).length;
  const actions = html`<span class="card-acts"><button type="button" class=${main ? "main" : ""} onClick=${() => askCreate(kind, label, found.reload)}>New key…</button>
    <${CopyAs} cli=${`bellringer keys list${kind.cli}`} path=${kind.path} />${aside}</span>`;
  return html`<${Card} title=${title} wide=${true} aside=${actions}>${children}<div class="tools key-notes">
      ${keys.some((key) => key.state !== "active") && html`<label><input type="checkbox" checked=${all} onChange=${() => setQuery({ ended: all ? "" : "yes" })} /> Show expired and revoked keys</label>`}
      ${endless > 0 && html`<span class="tone-warn"><${Icon} name="warning" /> ${endless === shown.length ? (endless === 1 ? "This key has no expiry date." : "None of these keys has an expiry date.") : `${endless} of ${shown.length} keys ${endless === 1 ? "has" : "have"} no expiry date.`}</span>`}
    </div>
    <${Loading} of=${found}>${() => (shown.length ? html`<${Table} caption=${label} columns=${COLUMNS(kind, found.reload)} rows=${shown} id=${(key) => key.key_id} />`
      : html`<${Empty} title=${keys.length ? "No active keys" : "No keys yet"}><p>Send the key in the header <code>Authorization: Bearer KEY</code>.</p><p><${Command}
        text=${`bellringer keys create deploy --role operator${kind.cli}`} /></p><//>`)}<//><//>`;
}

const COLUMNS = (kind, reload) => [
  { name: "Name", phone: "title", cell: (key) => html`<span class="name">${key.name}</span>${kind.who(key.name) === caller.value?.who && html` <span
    class="mute">(you)</span>`}` },
  { name: "State", class: "tight", phone: "side", cell: (key) => html`<${State} of=${key.state}
    title=${key.replaced_by ? `replaced by ${key.replaced_by}` : undefined} />` },
  { name: "Role", class: "tight", phone: "line", cell: (key) => key.role },
  { name: "Scopes", phone: "line", short: "· scopes:", cell: (key) => (key.scopes.length ? key.scopes.join(", ") : html`<span class="mute">all</span>`) },
  { name: "Key", class: "tight", phone: "full", title: "the beginning of the key", cell: (key) => html`<code class="mute">br_${key.key_id}_…</code>` },
  { name: "Expires", class: "tight", phone: "line", short: "· expires", cell: (key) => (key.expires_at ? html`<${Time} at=${key.expires_at} />` : "never") },
  { name: "Last used", class: "tight", phone: "line", short: "· used", cell: (key) => (key.last_used_at ? html`<${Time} at=${key.last_used_at} />` : "never") },
  { name: "Created", class: "tight", phone: "line", short: "· created", cell: (key) => html`<${Time} at=${key.created_at} /> <span class="mute">by ${key.created_by}</span>` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight acts", phone: "full", cell: (key) => key.state === "active" && html`<span class="row-actions apart">
      <button type="button" class="quiet" aria-label=${`Rotate ${key.name}…`} onClick=${() => askRotate(kind, key, reload)}>Rotate…</button>
      <button type="button" class="quiet tone-bad" aria-label=${`Revoke ${key.name}…`} onClick=${() => askRevoke(kind, key, reload)}>Revoke…</button></span>` },
];

/** Parses a comma-separated list. */
const parseList = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);

function askCreate(kind, label, reload) {
  openDialog(`New key: ${label.toLowerCase()}`, function Create({ close }) {
    const [asked, setAsked] = useState({ name: "", role: "operator", scopes: "", expires: "" });
    const [made, setMade] = useState(null);
    const change = (name) => (value) => setAsked({ ...asked, [name]: value });
    async function act() {
      const body = { name: asked.name.trim(), role: asked.role, scopes: parseList(asked.scopes), ...(asked.expires && { expires: asked.expires.trim() }) };
      setMade((await request("POST", kind.path, { body, extraHeaders: kind.headers })).data);
      reload();
    }
    if (made) return html`<${Secret} title=${`Key ${made.name}`} text=${made.key} close=${close} />`;
    return html`<${DialogForm} close=${close} verb="Create key" act=${act} ready=${asked.name.trim()}>${(faults) => html`
      <${TextField} label="Name" hint="shown in the audit log" value=${asked.name} set=${change("name")} faults=${faultsAt(faults, "/name")} required />
      <${SelectField} label="Role" hint="upper limit of its permissions" of=${ROLES} value=${asked.role} set=${change("role")} faults=${faultsAt(faults, "/role")} />
      <${TextField} label="Scopes" hint=${`comma-separated: ${SCOPES.join(", ")}; leave empty for all`} value=${asked.scopes} set=${change("scopes")}
        faults=${faultsAt(faults, "/scopes")} />
      <${TextField} label="Expires" hint="a duration such as 90d, or a time; leave empty for never" value=${asked.expires} set=${change("expires")}
        faults=${faultsAt(faults, "/expires")} />`}<//>`;
  });
}

function askRotate(kind, key, reload) {
  openDialog(`Rotate ${key.name}`, function Rotate({ close }) {
    const [grace, setGrace] = useState("1h");
    const [expires, setExpires] = useState("");
    const [made, setMade] = useState(null);
    async function act() {
      const body = { grace, ...(expires && { expires }) };
      setMade((await request("POST", `${kind.path}/${part(key.key_id)}/rotate`, { body, extraHeaders: kind.headers })).data);
      reload();
    }
    if (made) return html`<${Secret} title=${`New key ${made.name}`} text=${made.key} close=${close} />`;
    return html`<${DialogForm} close=${close} verb="Rotate" act=${act}>${(faults) => html`
      <p class="mute">Creates a new key with the same role and scopes. The old key stays valid for the grace period.</p>
      <${TextField} label="Grace period" hint="a duration such as 1h or 7d, at most 30 days; 0s revokes the old key now" value=${grace} set=${setGrace}
        faults=${faultsAt(faults, "/grace")} required />
      <${TextField} label="New key expires" hint="a duration such as 90d, or a time; leave empty for never" value=${expires} set=${setExpires}
        faults=${faultsAt(faults, "/expires")} />`}<//>`;
  });
}

function askRevoke(kind, key, reload) {
  const mine = kind.who(key.name) === caller.peek()?.who ? " You are signed in with this key." : "";
  confirm({
    title: `Revoke key ${key.name}?`,
    verb: `Revoke ${key.name}`,
    note: `The key stops working within five seconds. This cannot be undone.${mine}`,
    act: () => request("DELETE", `${kind.path}/${part(key.key_id)}`, { extraHeaders: kind.headers }).then(reload),
    done: `Revoked key ${key.name}`,
  });
}
