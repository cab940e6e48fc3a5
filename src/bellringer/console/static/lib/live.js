// What happens, as it happens: one stream a browser. One tab holds it and tells the others; paused means no requests at all.
import { effect, signal } from "./html.js";
import { locked } from "./api.js";
import { told as events } from "./sse.js";

export const state = signal("connecting"); // live, polling, paused, connecting
export const pulse = signal({}); // the last that was told: what has changed, as numbers
const told = new BroadcastChannel("bellringer.live");
const POLL = 5000;
let stop = null;
let failures = 0;

export function toggle() {
  state.value = state.peek() === "paused" ? "connecting" : "paused";
}

told.onmessage = ({ data }) => {
  if (state.peek() !== "paused") hear(data, "live");
};

function hear(data, how) {
  failures = 0;
  state.value = how;
  pulse.value = data;
}

async function follow(hold) {
  for await (const { data } of events("pulse", {}, { signal: hold })) {
    hear(data, "live");
    told.postMessage(data);
  }
}

async function hold(signal) {
  while (!signal.aborted) {
    try {
      await follow(signal);
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
    }
    if (failures >= 2 && state.peek() !== "paused") hear({ ...pulse.peek(), polled: Date.now() }, "polling");
    await new Promise((later) => setTimeout(later, failures ? POLL : 500));
  }
}

function start() {
  if (stop) return;
  stop = new AbortController();
  const { signal } = stop;
  if (navigator.locks) navigator.locks.request("bellringer.live", { signal }, () => hold(signal)).catch(() => {});
  else hold(signal);
}

function end() {
  stop?.abort();
  stop = null;
}

const seen = signal(!document.hidden);
document.addEventListener("visibilitychange", () => (seen.value = !document.hidden));
effect(() => (state.value !== "paused" && seen.value && !locked.value ? start() : end()));
