// API keys: a tenant's, or those of the whole installation. What a key is, is told once.
import { html, useState } from "../lib/html.js";
import { ask, caller, part } from "../lib/api.js";
import { useData } from "../lib/load.js";
import { narrow, query } from "../lib/place.js";
import { Ask } from "./ask.js";
import { CopyAs, Empty, Loading, When } from "./basics.js";
import { Command } from "./command.js";
import { confirm, show } from "./dialog.js";
import { Select, Text, faultsAt } from "./field.js";
import { Secret } from "./secret.js";
import { State } from "./state.js";
import { Table } from "./table.js";

const ROLES = {
  viewer: "viewer: reads", operator: "operator: also pauses, runs, cancels, redrives", editor: "editor: also makes and changes jobs",
  admin: "admin: also keys and the audit",
};
// The kinds of things that a key may be kept to; the server refuses what it does not know, and says so at the field.
const SCOPES = [
  "access", "audit", "backfills", "calendars", "cluster", "dead letters", "events", "freezes", "jobs", "operations", "overview", "pools", "runs", "schedules",
  "service", "tasks", "tenants", "webhooks", "workers",
];
const LARGEST = 200;

/** Where keys of one kind are: {path, more, cli, who(name)}. */
function kindOf(everywhere, tenant) {
  if (everywhere) return { path: "installation-keys", more: {}, cli: " --everywhere", who: (name) => `installation-key:${name}` };
  return { path: "api-keys", more: tenant ? { "X-Tenant": tenant } : {}, cli: tenant ? ` --tenant ${tenant}` : "", who: (name) => `key:${name}` };
}

/** `everywhere`: those of the installation; `tenant`: another tenant's than the caller's. */
export function Keys({ everywhere = false, tenant }) {
  const kind = kindOf(everywhere, tenant);
  const all = query.value.get("ended") === "yes";
  const read = async (stop) => (await ask("GET", kind.path, { terms: { limit: LARGEST }, signal: stop, more: kind.more })).data;
  const found = useData(read, [kind.path, tenant], { still: true });
  const label = everywhere ? "Keys of the whole installation" : `Keys of ${tenant ?? caller.value?.tenant ?? "this tenant"}`;
  return html`<div class="tools">
      <button type="button" class="main" onClick=${() => askCreate(kind, label, found.again)}>New key …</button>
      <label><input type="checkbox" checked=${all} onChange=${() => narrow({ ended: all ? "" : "yes" })} /> show those that are good no more</label>
      <span class="gap"></span><${CopyAs} cli=${`bellringer keys list${kind.cli}`} path=${kind.path} />
    </div>
    <${Loading} of=${found}>${({ items }) => {
      const shown = items.filter((key) => all || key.state === "active").toReversed();
      if (!shown.length) return html`<${Empty}
        title="No keys yet"><p>A program logs in by a key: <code>Authorization: Bearer …</code></p><p><${Command}
        text=${`bellringer keys create deploy --role operator${kind.cli}`} /></p><//>`;
      return html`<${Table} caption=${label} columns=${COLUMNS(kind, found.again)} rows=${shown} id=${(key) => key.key_id} />`;
    }}<//>`;
}

const COLUMNS = (kind, again) => [
  { name: "State", class: "tight", cell: (key) => html`<${State} of=${key.state}
    title=${key.replaced_by ? `replaced by ${key.replaced_by}` : undefined} />` },
  { name: "Name", cell: (key) => html`<span class="name">${key.name}</span>${kind.who(key.name) === caller.value?.who && html` <span
    class="mute">(you)</span>`}` },
  { name: "Id", class: "tight", cell: (key) => html`<code>${key.key_id}</code>` },
  { name: "Role", class: "tight", cell: (key) => key.role },
  { name: "For", cell: (key) => (key.scopes.length ? key.scopes.join(", ") : html`<span class="mute">everything</span>`) },
  { name: "Ends", class: "tight", cell: (key) => (key.expires_at ? html`<${When} at=${key.expires_at} />` : html`<span class="mute">never</span>`) },
  { name: "Last used", class: "tight", cell: (key) => (key.last_used_at ? html`<${When} at=${key.last_used_at} />` : html`<span class="mute">never</span>`) },
  { name: "Made", class: "tight", cell: (key) => html`<${When} at=${key.created_at} /> <span class="mute">by ${key.created_by}</span>` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight acts", cell: (key) => key.state === "active" && html`<span class="row-actions">
      <button type="button" class="quiet" aria-label=${`Rotate ${key.name} …`} onClick=${() => askRotate(kind, key, again)}>Rotate …</button>
      <button type="button" class="quiet" aria-label=${`Revoke ${key.name} …`} onClick=${() => askRevoke(kind, key, again)}>Revoke …</button></span>` },
];

/** What was typed as a list: by commas. */
const listed = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);

function askCreate(kind, label, again) {
  show(`New key: ${label.toLowerCase()}`, function Create({ close }) {
    const [asked, set] = useState({ name: "", role: "operator", scopes: "", expires: "" });
    const [made, tell] = useState(null);
    const change = (name) => (value) => set({ ...asked, [name]: value });
    async function act() {
      const body = { name: asked.name.trim(), role: asked.role, scopes: listed(asked.scopes), ...(asked.expires && { expires: asked.expires.trim() }) };
      tell((await ask("POST", kind.path, { body, more: kind.more })).data);
      again();
    }
    if (made) return html`<${Secret} title=${`The key ${made.name}`} text=${made.key} close=${close} />`;
    return html`<${Ask} close=${close} verb="Make the key" act=${act} ready=${asked.name.trim()}>${(faults) => html`
      <${Text} label="Name" hint="the audit names what it did by it" value=${asked.name} set=${change("name")} faults=${faultsAt(faults, "/name")} required />
      <${Select} label="Role" hint="the most that it may do" of=${ROLES} value=${asked.role} set=${change("role")} faults=${faultsAt(faults, "/role")} />
      <${Text} label="Only for" hint=${`by commas, of: ${SCOPES.join(", ")}; empty: everything`} value=${asked.scopes} set=${change("scopes")}
        faults=${faultsAt(faults, "/scopes")} />
      <${Text} label="Ends" hint="a length such as 90d, or an instant; empty: never" value=${asked.expires} set=${change("expires")}
        faults=${faultsAt(faults, "/expires")} />`}<//>`;
  });
}

function askRotate(kind, key, again) {
  show(`Rotate ${key.name}`, function Rotate({ close }) {
    const [grace, keep] = useState("1h");
    const [expires, end] = useState("");
    const [made, tell] = useState(null);
    async function act() {
      const body = { grace, ...(expires && { expires }) };
      tell((await ask("POST", `${kind.path}/${part(key.key_id)}/rotate`, { body, more: kind.more })).data);
      again();
    }
    if (made) return html`<${Secret} title=${`The new key ${made.name}`} text=${made.key} close=${close} />`;
    return html`<${Ask} close=${close} verb="Rotate" act=${act}>${(faults) => html`
      <p class="mute">A new key like this one is made. The old one stays good for the grace, so that programs can change over.</p>
      <${Text} label="Grace" hint="a length such as 1h or 7d, 30 days at most; 0s: the old one ends now" value=${grace} set=${keep}
        faults=${faultsAt(faults, "/grace")} required />
      <${Text} label="The new one ends" hint="a length such as 90d, or an instant; empty: never" value=${expires} set=${end}
        faults=${faultsAt(faults, "/expires")} />`}<//>`;
  });
}

function askRevoke(kind, key, again) {
  const mine = kind.who(key.name) === caller.peek()?.who ? " It is the one that you are logged in by." : "";
  confirm({
    title: `Revoke the key ${key.name}?`,
    verb: `Revoke ${key.name}`,
    note: `Whoever uses it is refused within five seconds, and it cannot be made good again.${mine}`,
    act: () => ask("DELETE", `${kind.path}/${part(key.key_id)}`, { more: kind.more }).then(again),
    done: `the key ${key.name} is revoked`,
  });
}
