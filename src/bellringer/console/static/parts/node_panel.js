// A node of a workflow run, beside the graph: how it stands and why, what it made, its elements if it is a map, and what can be done about it.
import { html, useState } from "../lib/html.js";
import { get, may, part } from "../lib/api.js";
import { useData } from "../lib/load.js";
import { gather } from "../lib/pages.js";
import { narrow, query } from "../lib/place.js";
import { RunLine } from "./attempts.js";
import { CopyAs, Facts, Json, Link, Loading, More, When } from "./basics.js";
import { askCancelNode, askMark, askSignal, retryNode } from "./flow_actions.js";
import { ENDED, Lasts, NodeState, RULES, STATES, placeOf, reasonOf, word } from "./flow_words.js";
import { CANCELLABLE, RunId, headline } from "./run_words.js";
import { Why } from "./why.js";

const PAGE = 50;
const CLOSED = { node: "", element: "" };

/** name: a node, or an element of a map. */
export function NodePanel({ graph, name, again }) {
  const place = placeOf(graph, name);
  return html`<aside class="card panel" aria-label=${`node ${name}`}>
    <header><h2>${name}</h2><button type="button" class="quiet icon" aria-label="close the node" title="close (Escape)"
      onClick=${() => narrow(CLOSED)}>✕</button></header>
    ${!place
      ? html`<p class="mute">This workflow run has no such node.</p>`
      : place.element
        ? html`<${Element} key=${name} graph=${graph} node=${place.node} name=${name} again=${again} />`
        : html`<${Node} key=${name} graph=${graph} node=${place.node} again=${again} />`}
  </aside>`;
}

function Node({ graph, node, again }) {
  return html`<${Head} node=${node} />
    <${Buttons} graph=${graph} node=${node} of=${node} name=${node.name} again=${again} />
    <${Known} node=${node} of=${node} />
    ${node.map && html`<${Elements} graph=${graph} node=${node} />`}
    <${Rest} graph=${graph} of=${node} name=${node.name} />`;
}

/** One of a map; it is read by its name, for the graph only counts them. */
function Element({ graph, node, name, again }) {
  const found = useData((stop) => get(`runs/${part(graph.run_id)}/nodes`, { node: name }, stop), [name, JSON.stringify(node.map)]);
  const both = () => (again(), found.again());
  return html`<p><button type="button" class="quiet back" onClick=${() => narrow({ node: node.name })}>‹ ${node.name}</button></p>
    <${Loading} of=${found}>${({ items: [one] }) => one && html`<${Head} node=${{ ...one, kind: node.kind }} />
      <${Buttons} graph=${graph} node=${node} of=${one} name=${name} again=${both} />
      ${one.item !== null && html`<h3>Element</h3><pre class="json" tabindex="0" aria-label="what it is for">${one.item}</pre>`}
      <${Known} node=${node} of=${one} /><${Rest} graph=${graph} of=${one} name=${name} />`}<//>`;
}

function Head({ node }) {
  return html`<p class="lead"><${NodeState} of=${node.state} /> <span class="mute"><${Lasts} node=${node} /></span>${node.reason && html`<br />
    <span>${reasonOf(node)}</span>`}</p>`;
}

/** node: as the graph has it; of: the same, or its element. */
function Buttons({ graph, node, of, name, again }) {
  if (!may("operator")) return null;
  const isBegun = of.run_id !== null && CANCELLABLE.includes(of.state) && !node.map;
  const isElement = of !== node;
  const canMark = !graph.undoing && of.state !== "running" && !(node.map && !isElement);
  return html`<div class="tools" role="group" aria-label="what can be done to the node">
    ${node.signal && !ENDED.includes(of.state) && html`<button type="button" class="main" onClick=${() => askSignal(graph, node.signal, again)}>
      Send signal …</button>`}
    ${ENDED.includes(of.state) && !graph.undoing && html`<button type="button" class=${of.state === "dead" ? "main" : ""}
      onClick=${() => retryNode(graph, node, name, again)}>Retry with downstream</button>`}
    ${canMark && html`<button type="button" onClick=${() => askMark(graph, name, again)}>Mark …</button>`}
    ${(isBegun || (isElement && of.run_id && CANCELLABLE.includes(of.state))) && html`<button type="button" class="danger"
      onClick=${() => askCancelNode(of.run_id, name, again)}>Cancel …</button>`}
  </div>`;
}

function Known({ node, of }) {
  const is = (one) => html`<button type="button" class="quiet link" onClick=${() => narrow({ node: one })}>${one}</button> `;
  const at = (instant) => instant && html`<${When} at=${instant} short=${false} />`;
  return html`<${Facts} of=${[
      of.run_id && ["Run", html`<${RunId} id=${of.run_id} /> <${Link} to=${`runs/${part(of.run_id)}`}>attempts and logs<//>`],
      node.task && [node.kind === "workflow" ? "Workflow" : "Task", html`<code>${node.task}</code>`],
      of.attempt > 0 && ["Attempt", of.attempt], ["Started", at(of.started_at)], ["Ended", at(of.finished_at)],
      node.due_at && ["Until", at(node.due_at)], node.signal && ["Signal", html`<code>${node.signal}</code>`],
      node.undoes ? ["Undoes", is(node.undoes)] : ["Runs when", RULES[node.when] ?? node.when],
      node.parents.length > 0 && ["After", node.parents.slice(0, 20).map(is)], node.critical && ["Critical path", "★ on it"],
    ]} />`;
}

/** Why it is there, what its run did, and how a program reads it. */
function Rest({ graph, of, name }) {
  return html`${of.state !== "succeeded" && html`<h3>Why</h3><${Why} path=${`runs/${part(graph.run_id)}/nodes/why`} terms=${{ node: name }} />`}
    ${of.run_id && html`<${OfRun} of=${of} />`}
    <p class="panel-copy"><${CopyAs} cli=${`bellringer workflows nodes ${graph.run_id} ${word(name)}`}
      path=${`runs/${part(graph.run_id)}/nodes?node=${encodeURIComponent(name)}`} /></p>`;
}

/** Its run, in short: the time line, and how it ended. */
function OfRun({ of }) {
  const found = useData((stop) => get(`runs/${part(of.run_id)}`, {}, stop), [of.run_id, of.state, of.attempt], { still: true });
  return html`<${Loading} of=${found}>${(run) => html`<${RunLine} run=${run} />
    ${run.error && html`<h3>Error</h3><p class="run-error">${headline(run)}</p>`}
    ${run.state === "succeeded" && html`<h3>Result</h3><${Json} value=${run.result} label="what it gave back" />`}`}<//>`;
}

function Elements({ graph, node }) {
  const [wanted, want] = useState(PAGE);
  const state = query.value.get("element") ?? "";
  const terms = { node: node.name, state };
  const found = useData((stop) => gather(`runs/${part(graph.run_id)}/nodes`, terms, wanted, stop), [node.name, state, wanted, JSON.stringify(node.map)]);
  const held = STATES.filter((one) => one === state || node.map[one]);
  return html`<h3>Elements</h3>
    <div class="chips" role="group" aria-label="elements by state">${held.map((one) => html`<button type="button" class="chip" aria-pressed=${one === state}
      onClick=${() => narrow({ element: one === state ? "" : one })}>${one} <span class="count">${node.map[one]?.toLocaleString("en") ?? 0}</span></button>`)}</div>
    <${Loading} of=${found}>${({ items, next_cursor: cursor }) => html`
      ${items.length === 0 && html`<p class="mute">None${state && ` is ${state}`}.</p>`}
      <ul class="elements">${items.map((one) => html`<li key=${one.name}><button type="button" class="quiet" onClick=${() => narrow({ node: one.name })}>
        <span class="number">[${one.index}]</span> <${NodeState} of=${one.state} /> <span class="mute"><${Lasts} node=${one} /></span>
        <code class="clip">${one.item}</code></button></li>`)}</ul>
      <${More} cursor=${cursor} busy=${found.busy} onMore=${() => want(wanted + PAGE)} />`}<//>`;
}
