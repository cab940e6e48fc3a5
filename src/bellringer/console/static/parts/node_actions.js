// Actions on the nodes of a workflow run. Actions that discard results ask for confirmation and list the affected nodes.
import { html, useState } from "../lib/html.js";
import { part, post } from "../lib/api.js";
import { JsonField } from "./arguments.js";
import { DialogForm } from "./dialog_form.js";
import { perform, confirm, openDialog, notify } from "./dialog.js";
import { SelectField, TextField, faultsAt } from "./field.js";
import { nodesAfter } from "./node_text.js";

const pathOf = (graph) => `runs/${part(graph.run_id)}`;

export function retryAll(graph, reload) {
  return perform(() => post(`${pathOf(graph)}/nodes/retry`, {}).then(reload), "Retrying all failed nodes");
}

/** name: a node, or an element of a map. Asks for confirmation if succeeded nodes would run again. */
export function retryNode(graph, node, name, reload) {
  const act = () => post(`${pathOf(graph)}/nodes/retry`, { nodes: [name] }).then((response) => (reload(), response));
  const later = nodesAfter(graph, node.name);
  const made = [...(node.state === "succeeded" ? [node] : []), ...later.filter((one) => one.state === "succeeded")];
  if (!made.length) return perform(act, `Retrying ${name} and the nodes after it`);
  return confirm({
    title: `Run ${name} again?`,
    verb: "Run again",
    note: `The nodes after it run again too. ${made.length === 1 ? "This node has succeeded and will" : `These ${made.length} nodes have succeeded and will`} be repeated:`,
    samples: made.map((one) => html`<code>${one.name}</code>`),
    act,
    done: `Retrying ${name}`,
  });
}

const ENDS = { succeeded: "succeeded", dead: "failed" };

export function askMark(graph, name, reload) {
  openDialog(`Mark ${name}`, function Mark({ close }) {
    const [state, setState] = useState("succeeded");
    const [result, setResult] = useState(null);
    const [reason, setReason] = useState("");
    async function act() {
      const body = { node: name, state, reason, ...(state === "succeeded" && { result }) };
      const response = await post(`${pathOf(graph)}/nodes/mark`, body);
      notify(`Marked ${name} as ${ENDS[state]}`);
      reload();
      return response;
    }
    const ready = reason.trim() && !(result instanceof Error);
    return html`<${DialogForm} close=${close} verb=${state === "dead" ? "Mark failed" : "Mark succeeded"} act=${act} ready=${ready}>${(faults) => html`
      <p class="mute">The node does not run; the nodes after it continue. The audit log records your name and reason.</p>
      <${SelectField} label=${name} of=${ENDS} value=${state} set=${setState} faults=${faultsAt(faults, "/state")} />
      ${state === "succeeded" && html`<${JsonField} label="Result" hint="input of the nodes after it" rows=${4} value=${result} set=${setResult}
        faults=${faultsAt(faults, "/result")} />`}
      <${TextField} label="Reason" value=${reason} set=${setReason} required=${true} faults=${faultsAt(faults, "/reason")} />`}<//>`;
  });
}

export function askCancelNode(runId, name, reload) {
  confirm({
    title: `Cancel ${name}?`,
    verb: "Cancel the node's run",
    note: "The workflow run continues and treats the node as failed.",
    wantsReason: true,
    act: (reason) => post(`runs/${part(runId)}/cancel`, reason ? { reason } : {}).then((response) => (reload(), response)),
    done: (response) => (response.state === "running" ? `Cancel of ${name} requested` : `Cancelled ${name}`),
  });
}

export function askSignal(graph, signal, reload) {
  openDialog(`Send signal ${signal}`, function Send({ close }) {
    const [payload, setPayload] = useState(null);
    async function act() {
      const { taken } = await post(`${pathOf(graph)}/signals/${part(signal)}`, { payload });
      notify(taken ? `Signal ${signal} delivered` : `Signal ${signal} is stored until a node waits for it`);
      reload();
      return true;
    }
    return html`<${DialogForm} close=${close} verb="Send" act=${act} ready=${!(payload instanceof Error)}>${(faults) => html`
      <p class="mute">The payload becomes the result of the node that waits for the signal.</p>
      <${JsonField} label="Payload" hint="JSON" rows=${4} value=${payload} set=${setPayload} faults=${faultsAt(faults, "/payload")} />`}<//>`;
  });
}
