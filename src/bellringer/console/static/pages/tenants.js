// Tenants with usage and quotas, for administrators of the installation. Other callers see their own tenant.
import { html, useState } from "../lib/html.js";
import { request, caller, get, may, part, post } from "../lib/api.js";
import { Icon } from "../lib/icons.js";
import { useData } from "../lib/page_data.js";
import { fetchPages } from "../lib/pages.js";
import { setQuery, query } from "../lib/router.js";
import { formatTime } from "../lib/time.js";
import { Keys } from "../parts/api_keys.js";
import { DialogForm } from "../parts/dialog_form.js";
import { CopyAs, Empty, Link, Loading, MoreButton, Time } from "../parts/elements.js";
import { Command } from "../parts/copyable_command.js";
import { confirm, openDialog, notify } from "../parts/dialog.js";
import { TextField, faultsAt } from "../parts/field.js";
import { Gauge } from "../parts/gauge.js";
import { Menu } from "../parts/menu.js";
import { usePollingWhile } from "../parts/operations.js";
import { State } from "../parts/state_badge.js";
import { Table } from "../parts/table.js";
import { switchTenant } from "../parts/switch_tenant.js";

const PAGE = 25;
const USAGE_INTERVAL_MS = 10_000; // milliseconds between two loads of the usage
const QUOTAS = {
  jobs: ["Jobs", "jobs that are neither deleted nor done"],
  fires_per_minute: ["Scheduled runs per minute", "runs that all schedules together start, on average; tasks that are sent directly do not count"],
  in_flight: ["Concurrent runs", "runs that execute at the same time; further runs wait"],
  payload_bytes: ["Argument size", "bytes of arguments per job or run"],
  api_per_minute: ["Requests per minute", "per server process"],
};
// Headers of the table. Requests are not counted, so that column appears only if a tenant has such a limit.
const SHORT_NAMES = { jobs: "Jobs", fires_per_minute: "Scheduled runs per min", in_flight: "Running", api_per_minute: "Requests per min" };
const PHONE_WORDS = { jobs: "jobs", fires_per_minute: "runs/min", in_flight: "running", api_per_minute: "requests/min" };
const pathOf = (tenant) => `tenants/${part(tenant.name)}`;
const figure = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });

export default function Tenants() {
  if (!caller.value) return html`<p class="loading" aria-busy="true">Loading…</p>`;
  return caller.value.everywhere && may("admin") ? html`<${AllTenants} />` : html`<${OwnTenant} />`;
}

/** Usage against quota. */
function Quota({ of, name }) {
  if (!of) return html`<span class="mute">…</span>`;
  if (of.used === null) return of.most === null ? html`<span class="mute">–</span>` : html`<span title="the limit; its usage is not counted">≤ ${figure(of.most)}</span>`;
  if (of.most === null) return html`<span>${figure(of.used)}</span>`;
  return html`<${Gauge} value=${of.used} most=${of.most} label=${`${QUOTAS[of.name]?.[0] ?? of.name} of ${name}`} waits=${true} />`;
}

function OwnTenant() {
  const found = useData((stop) => get("limits", {}, stop), []);
  return html`<header class="head"><h1>Tenant ${caller.value.tenant}</h1><span class="gap"></span><${CopyAs} cli="bellringer limits" path="limits" /></header>
    <p class="lead">Usage and quotas of your tenant. <span
      class="mute">Only administrators of the installation see other tenants.</span></p>
    <${Loading} of=${found}>${(data) => html`<${Table} caption="Quotas" rows=${data.quotas} id=${(one) => one.name} columns=${[
      { name: "Quota", class: "tight", cell: (one) => QUOTAS[one.name]?.[0] ?? one.name },
      { name: "Used", cell: (one) => html`<${Quota} of=${one} name=${data.tenant} />` },
      { name: "What it limits", cell: (one) => html`<span class="mute">${QUOTAS[one.name]?.[1] ?? ""}</span>` },
    ]} />`}<//>`;
}

// All tenants

function AllTenants() {
  const [wanted, setWanted] = useState(PAGE);
  const found = useData((stop) => fetchPages("tenants", {}, wanted, stop), [wanted], { once: true });
  const names = (found.data?.items ?? []).map((one) => one.name);
  const used = useData((stop) => usage(names, stop), [names.join("\n")], { once: true });
  usePollingWhile(names.length > 0, used.reload, USAGE_INTERVAL_MS);
  const reload = () => {
    found.reload();
    used.reload();
  };
  return html`<header class="head"><h1>Tenants</h1><span class="gap"></span><button type="button" class="main"
    onClick=${() => askTenant(null, reload)}>New tenant…</button><${CopyAs} cli="bellringer tenants list" path="tenants" /></header>
    <${Loading} of=${found}>${(data) => html`<p class="lead">${summary(data)}</p>
      <${Table} caption="Tenants" kind="tenants" columns=${COLUMNS(data.items, used.data ?? {}, reload)} rows=${data.items} id=${(one) => one.name}
        open=${(one) => setQuery({ tenant: one.name })} />
      <${MoreButton} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => setWanted(wanted + PAGE)} />
      ${data.items.length === 1 && html`<${OnlyOneTenant} />`}<${OneTenant} of=${data.items.find((one) => one.name === query.value.get("tenant"))} />`}<//>`;
}

const OnlyOneTenant = () => html`<${Empty} title="One tenant is enough for most installations"><p>Another tenant has its own jobs, keys and quotas, and neither tenant sees the other.</p>
  <p><${Command} text="bellringer tenants create acme --quota jobs=1000" /></p><//>`;

async function usage(names, stop) {
  const all = await Promise.all(names.map((name) => get(`tenants/${part(name)}/usage`, {}, stop)));
  return Object.fromEntries(all.map((one) => [one.tenant, { ...Object.fromEntries(one.items.map((item) => [item.name, item])), load: one.load }]));
}

function summary({ items, next_cursor: more }) {
  const suspended = items.filter((one) => one.suspended_at).length;
  return `${items.length}${more ? " or more" : ""} tenant${items.length === 1 ? "" : "s"}, ${suspended ? `${suspended} suspended` : "none suspended"}.`;
}

const objectiveText = ({ target, within }) => [target && `${+(target * 100).toFixed(3)}%`, within && `within ${within}s`].filter(Boolean).join(" ");

const waiting = (load) => figure(load ? load.ready + load.retrying + load.held : 0);

const isOpen = (one) => query.value.get("tenant") === one.name;
const hasLimit = (items, quota) => items.some((one) => one.quotas[quota] !== undefined && one.quotas[quota] !== null);

const COLUMNS = (items, used, reload) => [
  { name: "Tenant", class: "tenant-cell", phone: "title", cell: (one) => html`<span class="nobreak"><${Link} to="tenants" terms=${{ tenant: one.name }} class="name" aria-current=${isOpen(one) ? "true" : undefined}>${one.name}<//>${one.name === caller.value.tenant && html` <span class="mute">(current)</span>`}</span>` },
  { name: "State", class: "tight", phone: "side", cell: (one) => html`<span><${State} of=${one.suspended_at ? "suspended" : "active"}
    title=${one.suspended_at ? `since ${formatTime(one.suspended_at)}` : undefined} />${one.suspended_at && html` <span class="mute since"><${Time} at=${one.suspended_at} /></span>`}</span>` },
  ...Object.entries(SHORT_NAMES).filter(([quota]) => quota !== "api_per_minute" || hasLimit(items, quota)).map(([quota, name]) => ({ name, title: QUOTAS[quota][1], class: "number", phone: "line", short: PHONE_WORDS[quota], cell: (one) => html`<${Quota}
    of=${used[one.name]?.[quota]} name=${one.name} />` })),
  { name: "Waiting", class: "number", phone: "line", short: "waiting", title: "runs that wait for a worker, for a retry, or for the end of a pause of their task", cell: (one) => waiting(used[one.name]?.load) },
  { name: "Retries, last hour", class: "number latest", phone: "hide", title: "attempts in the last hour that were not the first of their run", cell: (one) => figure(used[one.name]?.load.retried ?? 0) },
  { name: "Share", class: "number latest", phone: "hide", title: "share of the workers when several tenants wait: 2 gets twice as much as 1", cell: (one) => figure(one.weight) },
  { name: "On-time target", class: "number latest", phone: "hide", title: "share of runs that are to start in time", cell: (one) => objectiveText(one.objective) || html`<span class="mute" title="the default of the installation">default</span>` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight acts", phone: "acts", cell: (one) => html`<span class="row-actions">
      <button type="button" class="quiet keys-button" aria-label=${`Keys of ${one.name}`} aria-expanded=${isOpen(one)} onClick=${() => setQuery({ tenant: isOpen(one) ? "" : one.name })}>Keys</button>
      <${Menu} label=${`More actions: ${one.name}`} items=${[
        one.name !== caller.value.tenant && { icon: "tenants", text: `Switch to ${one.name}`, act: () => switchTenant(one.name) },
        { icon: "edit", text: "Edit…", act: () => askTenant(one, reload) },
        "-",
        { icon: one.suspended_at ? "resume" : "pause", text: one.suspended_at ? "Unsuspend…" : "Suspend…", tone: one.suspended_at ? undefined : "bad", act: () => suspend(one, reload) },
      ].filter((item, n, all) => item !== "-" || all.slice(0, n).some(Boolean))} /></span>` },
];

function suspend(one, reload) {
  const stop = !one.suspended_at;
  confirm({
    title: stop ? `Suspend ${one.name}?` : `Unsuspend ${one.name}?`,
    verb: stop ? `Suspend ${one.name}` : `Unsuspend ${one.name}`,
    note: stop ? "Its schedules start no more runs, and its users and programs can only read." : "Its schedules start runs again, and its users and programs can make changes again.",
    act: () => request("PATCH", pathOf(one), { body: { suspended: stop } }).then(reload),
    done: `${stop ? "Suspended" : "Unsuspended"} ${one.name}`,
  });
}

function OneTenant({ of }) {
  if (!of) return null;
  const close = html`<button type="button" class="quiet icon" aria-label="Close" title="Close" onClick=${() => setQuery({ tenant: "" })}><${Icon} name="close" /></button>`;
  return html`<${Keys} key=${of.name} title=${`API keys for ${of.name}`} tenant=${of.name} aside=${close} />`;
}

/** Invalid numbers are sent as text; the server reports the error at the field. */
const number = (text) => (String(text).trim() === "" ? null : Number.isNaN(Number(text)) ? text : Number(text));

/** Creates or edits a tenant. */
function askTenant(one, reload) {
  openDialog(one ? `Edit ${one.name}` : "New tenant", function Terms({ close }) {
    const quotas = Object.fromEntries(Object.keys(QUOTAS).map((name) => [name, one?.quotas[name] ?? ""]));
    const aims = { target: one?.objective.target ?? "", within: one?.objective.within ?? "" };
    const [asked, setAsked] = useState({ name: one?.name ?? "", weight: one?.weight ?? 1, ...aims, ...quotas });
    const change = (name) => (value) => setAsked({ ...asked, [name]: value });
    async function act() {
      const most = Object.keys(QUOTAS).map((name) => [name, number(asked[name])]);
      const objective = Object.fromEntries(["target", "within"].map((name) => [name, number(asked[name])]).filter(([, value]) => value !== null));
      const terms = { weight: number(asked.weight) ?? 1, quotas: Object.fromEntries(one ? most : most.filter(([, value]) => value !== null)), objective };
      const done = one ? await request("PATCH", pathOf(one), { body: terms }) : await post("tenants", { name: asked.name.trim(), ...terms });
      notify(one ? `Saved ${one.name}` : `Created ${asked.name.trim()}. Its programs need a key: open Keys to create one.`);
      reload();
      return done;
    }
    return html`<${DialogForm} close=${close} verb=${one ? "Save" : "Create tenant"} act=${act} ready=${asked.name.trim()}>${(faults) => html`
      ${!one && html`<${TextField} label="Name" hint="up to 63 letters, digits, dots, hyphens, underscores and spaces" value=${asked.name}
        set=${change("name")} faults=${faultsAt(faults, "/name")} required />`}
      <div class="fields">
        <${TextField} label="Share" hint="share of the workers when several tenants wait: 2 gets twice as much as 1" mode="decimal" value=${asked.weight} set=${change("weight")}
          faults=${faultsAt(faults, "/weight")} />
        ${Object.entries(QUOTAS).map(([name, [label, hint]]) => html`<${TextField} key=${name} label=${label} hint=${`${hint}; empty: no limit`}
          mode="decimal" value=${asked[name]} set=${change(name)} faults=${faultsAt(faults, `/quotas/${name}`)} />`)}
        <${TextField} label="On-time target" hint="share of runs that are to start in time, for example 0.999; empty: the default" mode="decimal" value=${asked.target}
          set=${change("target")} faults=${faultsAt(faults, "/objective/target")} />
        <${TextField} label="Start within" hint="seconds after the scheduled time that still count as in time" mode="decimal" value=${asked.within} set=${change("within")}
          faults=${faultsAt(faults, "/objective/within")} />
      </div>`}<//>`;
  });
}
