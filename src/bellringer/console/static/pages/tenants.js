// Tenants: who has how much of what they may have; for administrators of the whole installation. To all others, what their own tenant has.
import { html, useState } from "../lib/html.js";
import { ask, caller, get, may, part, post } from "../lib/api.js";
import { tenant as chosenTenant } from "../lib/kept.js";
import { useData } from "../lib/load.js";
import { gather } from "../lib/pages.js";
import { narrow, query } from "../lib/place.js";
import { full } from "../lib/time.js";
import { Keys } from "../parts/api_keys.js";
import { Ask } from "../parts/ask.js";
import { Card, CopyAs, Empty, Loading, More } from "../parts/basics.js";
import { Command } from "../parts/command.js";
import { confirm, show, tell } from "../parts/dialog.js";
import { Text, faultsAt } from "../parts/field.js";
import { Gauge } from "../parts/gauge.js";
import { useWhile } from "../parts/operations.js";
import { State } from "../parts/state.js";
import { Table } from "../parts/table.js";

const PAGE = 25;
const EVERY = 10_000; // milliseconds between two looks at what they have
const QUOTAS = {
  jobs: ["Jobs", "jobs that are not deleted"],
  fires_per_minute: ["Fires/min", "what schedules fire on average; and, by itself, what is sent"],
  in_flight: ["In flight", "runs under way; more of them wait"],
  payload_bytes: ["Bytes of arguments", "of one job or run"],
  api_per_minute: ["Requests/min", "as each server sees them"],
};
const COUNTED = ["jobs", "fires_per_minute", "in_flight"];
const pathOf = (tenant) => `tenants/${part(tenant.name)}`;
const figure = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });

export default function Tenants() {
  if (!caller.value) return html`<p class="loading" aria-busy="true">Reading …</p>`;
  return caller.value.everywhere && may("admin") ? html`<${All} />` : html`<${Own} />`;
}

/** What there is of something, against what there may be. */
function Quota({ of, name }) {
  if (!of) return html`<span class="mute">…</span>`;
  if (of.used === null) return of.most === null ? html`<span class="mute">no limit</span>` : html`at most ${figure(of.most)}`;
  if (of.most === null) return html`${figure(of.used)} <span class="mute">of any</span>`;
  return html`<${Gauge} value=${of.used} most=${of.most} label=${`${QUOTAS[of.name]?.[0] ?? of.name} of ${name}`} waits=${true} />`;
}

function Own() {
  const found = useData((stop) => get("limits", {}, stop), []);
  return html`<header class="head"><h1>Tenant ${caller.value.tenant}</h1><span class="gap"></span><${CopyAs} cli="bellringer limits" path="limits" /></header>
    <p class="lead">What your tenant has, and may have. <span
      class="mute">The others, and what each may have, are for administrators of the whole installation.</span></p>
    <${Loading} of=${found}>${(data) => html`<${Table} caption="Quotas" rows=${data.quotas} id=${(one) => one.name} columns=${[
      { name: "What", class: "tight", cell: (one) => QUOTAS[one.name]?.[0] ?? one.name },
      { name: "Used", cell: (one) => html`<${Quota} of=${one} name=${data.tenant} />` },
      { name: "It counts", cell: (one) => html`<span class="mute">${QUOTAS[one.name]?.[1] ?? ""}</span>` },
    ]} />`}<//>`;
}

// All of them

function All() {
  const [wanted, want] = useState(PAGE);
  const found = useData((stop) => gather("tenants", {}, wanted, stop), [wanted], { still: true });
  const names = (found.data?.items ?? []).map((one) => one.name);
  const used = useData((stop) => usage(names, stop), [names.join("\n")], { still: true });
  useWhile(names.length > 0, used.again, EVERY);
  const again = () => {
    found.again();
    used.again();
  };
  return html`<header class="head"><h1>Tenants</h1><span class="gap"></span><button type="button" class="main"
    onClick=${() => askTenant(null, again)}>New tenant …</button><${CopyAs} cli="bellringer tenants list" path="tenants" /></header>
    <${Loading} of=${found}>${(data) => html`<p class="lead">${summary(data)}</p>
      <${Table} caption="Tenants" columns=${COLUMNS(used.data ?? {}, again)} rows=${data.items} id=${(one) => one.name}
        open=${(one) => narrow({ tenant: one.name })} />
      <${More} cursor=${data.next_cursor} busy=${found.busy} onMore=${() => want(wanted + PAGE)} />
      ${data.items.length === 1 && html`<${Alone} />`}<${OneTenant} of=${data.items.find((one) => one.name === query.value.get("tenant"))} />`}<//>`;
}

const Alone = () => html`<${Empty} title="One tenant is all that most need"><p>Another has jobs, keys and quotas of its own, and sees nothing of this one.</p>
  <p><${Command} text="bellringer tenants create acme --quota jobs=1000" /></p><//>`;

async function usage(names, stop) {
  const all = await Promise.all(names.map((name) => get(`tenants/${part(name)}/usage`, {}, stop)));
  return Object.fromEntries(all.map((one) => [one.tenant, Object.fromEntries(one.items.map((item) => [item.name, item]))]));
}

function summary({ items, next_cursor: more }) {
  const suspended = items.filter((one) => one.suspended_at).length;
  return `${items.length}${more ? " or more" : ""} tenant${items.length === 1 ? "" : "s"}, ${suspended ? `${suspended} of them suspended` : "none suspended"}.`;
}

const aim = ({ target, within }) => [target && `${+(target * 100).toFixed(3)} %`, within && `within ${within} s`].filter(Boolean).join(" ");

const COLUMNS = (used, again) => [
  { name: "State", class: "tight", cell: (one) => html`<${State} of=${one.suspended_at ? "suspended" : "active"}
    title=${one.suspended_at ? `since ${full(one.suspended_at)}` : undefined} />` },
  { name: "Name", cell: (one) => html`<span class="name">${one.name}</span>${one.name === caller.value.tenant && html` <span class="mute">(here)</span>`}` },
  ...COUNTED.map((quota) => ({ name: QUOTAS[quota][0], title: QUOTAS[quota][1], class: "tight", cell: (one) => html`<${Quota}
    of=${used[one.name]?.[quota]} name=${one.name} />` })),
  { name: "Requests/min", class: "tight", cell: (one) => html`<${Quota} of=${used[one.name]?.api_per_minute} name=${one.name} />` },
  { name: "Weight", class: "number", title: "its share of the claims beside the others'", cell: (one) => figure(one.weight) },
  { name: "Starts in time", class: "tight", cell: (one) => aim(one.objective) || html`<span class="mute" title="as the installation has it">–</span>` },
  { name: html`<span class="unseen">Actions</span>`, class: "tight acts", cell: (one) => html`<span class="row-actions">
      <button type="button" class="quiet" aria-label=${`Edit ${one.name} …`} onClick=${() => askTenant(one, again)}>Edit …</button>
      <button type="button" class="quiet" aria-label=${`Keys of ${one.name}`} onClick=${() => narrow({ tenant: one.name })}>Keys</button>
      ${one.name !== caller.value.tenant && html`<button type="button" class="quiet" aria-label=${`Look at ${one.name}`}
        onClick=${() => lookAt(one)}>Look at</button>`}
      <button type="button" class="quiet" aria-label=${`${one.suspended_at ? "Let go on" : "Suspend"} ${one.name} …`}
        onClick=${() => suspend(one, again)}>${one.suspended_at ? "Let go on …" : "Suspend …"}</button></span>` },
];

/** From now on this tab shows that tenant. Whatever was read is another's, so all is read anew. */
function lookAt(one) {
  chosenTenant.value = one.name;
  location.reload();
}

function suspend(one, again) {
  const stop = !one.suspended_at;
  confirm({
    title: stop ? `Suspend ${one.name}?` : `Let ${one.name} go on?`,
    verb: stop ? `Suspend ${one.name}` : `Let ${one.name} go on`,
    note: stop ? "Its callers can read, and change nothing, until it may go on." : "Its callers can change things again.",
    act: () => ask("PATCH", pathOf(one), { body: { suspended: stop } }).then(again),
    done: `${one.name} ${stop ? "is suspended" : "goes on"}`,
  });
}

function OneTenant({ of }) {
  if (!of) return null;
  const aside = html`<button type="button" class="quiet" onClick=${() => narrow({ tenant: "" })}>Close</button>`;
  return html`<${Card} title=${`Keys of ${of.name}`} wide=${true} aside=${aside}><${Keys} key=${of.name} tenant=${of.name} /><//>`;
}

/** What is no number, the server refuses at its field. */
const number = (text) => (String(text).trim() === "" ? null : Number.isNaN(Number(text)) ? text : Number(text));

/** A new tenant, or other terms for one that is there. */
function askTenant(one, again) {
  show(one ? `Change ${one.name}` : "New tenant", function Terms({ close }) {
    const quotas = Object.fromEntries(Object.keys(QUOTAS).map((name) => [name, one?.quotas[name] ?? ""]));
    const aims = { target: one?.objective.target ?? "", within: one?.objective.within ?? "" };
    const [asked, set] = useState({ name: one?.name ?? "", weight: one?.weight ?? 1, ...aims, ...quotas });
    const change = (name) => (value) => set({ ...asked, [name]: value });
    async function act() {
      const most = Object.keys(QUOTAS).map((name) => [name, number(asked[name])]);
      const objective = Object.fromEntries(["target", "within"].map((name) => [name, number(asked[name])]).filter(([, value]) => value !== null));
      const terms = { weight: number(asked.weight) ?? 1, quotas: Object.fromEntries(one ? most : most.filter(([, value]) => value !== null)), objective };
      const done = one ? await ask("PATCH", pathOf(one), { body: terms }) : await post("tenants", { name: asked.name.trim(), ...terms });
      tell(one ? `${one.name} is changed` : `${asked.name} is there; it has no key yet`);
      again();
      return done;
    }
    return html`<${Ask} close=${close} verb=${one ? "Save" : "Make the tenant"} act=${act} ready=${asked.name.trim()}>${(faults) => html`
      ${!one && html`<${Text} label="Name" hint="up to 63 letters, digits, dots, hyphens, underscores and spaces" value=${asked.name}
        set=${change("name")} faults=${faultsAt(faults, "/name")} required />`}
      <div class="fields">
        <${Text} label="Weight" hint="its share of the claims beside the others'" mode="decimal" value=${asked.weight} set=${change("weight")}
          faults=${faultsAt(faults, "/weight")} />
        ${Object.entries(QUOTAS).map(([name, [label, hint]]) => html`<${Text} key=${name} label=${label} hint=${`${hint}; empty: no limit`}
          mode="decimal" value=${asked[name]} set=${change(name)} faults=${faultsAt(faults, `/quotas/${name}`)} />`)}
        <${Text} label="Part of runs in time" hint="as 0.999; empty: as the installation has it" mode="decimal" value=${asked.target}
          set=${change("target")} faults=${faultsAt(faults, "/objective/target")} />
        <${Text} label="In time is within" hint="seconds" mode="decimal" value=${asked.within} set=${change("within")}
          faults=${faultsAt(faults, "/objective/within")} />
      </div>`}<//>`;
  });
}
