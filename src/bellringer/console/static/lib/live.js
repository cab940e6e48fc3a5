// Live updates: one event stream per browser. One tab holds the stream and broadcasts to the others. While paused, no requests are sent.
import { effect, signal } from "./html.js";
import { loginRequired } from "./api.js";
import { readEvents as events } from "./sse.js";

export const state = signal("connecting"); // live, polling, paused, connecting
export const pulse = signal({}); // the latest change counters from the server
const channel = new BroadcastChannel("bellringer.live");
const POLL_MS = 5000;
let stop = null;
let failures = 0;

export function toggle() {
  state.value = state.peek() === "paused" ? "connecting" : "paused";
}

channel.onmessage = ({ data }) => {
  if (state.peek() !== "paused") receive(data, "live");
};

function receive(data, how) {
  failures = 0;
  state.value = how;
  pulse.value = data;
}

async function follow(signal) {
  for await (const { data } of events("pulse", {}, { signal })) {
    receive(data, "live");
    channel.postMessage(data);
  }
}

async function holdStream(signal) {
  while (!signal.aborted) {
    try {
      await follow(signal);
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
    }
    if (failures >= 2 && state.peek() !== "paused") receive({ ...pulse.peek(), polled: Date.now() }, "polling");
    await new Promise((later) => setTimeout(later, failures ? POLL_MS : 500));
  }
}

function start() {
  if (stop) return;
  stop = new AbortController();
  const { signal } = stop;
  if (navigator.locks) navigator.locks.request("bellringer.live", { signal }, () => holdStream(signal)).catch(() => {});
  else holdStream(signal);
}

function end() {
  stop?.abort();
  stop = null;
}

const isVisible = signal(!document.hidden);
document.addEventListener("visibilitychange", () => (isVisible.value = !document.hidden));
effect(() => (state.value !== "paused" && isVisible.value && !loginRequired.value ? start() : end()));
