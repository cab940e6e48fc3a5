// Data of a page: loaded when the page opens and when its dependencies change, and reloaded when the server reports a change.
import { useEffect, useRef, useSignal } from "./html.js";
import { pulse, state } from "./live.js";

const MIN_INTERVAL_MS = 1000; // minimum time between two loads

/** `read(signal)` returns the data; `deps` are its dependencies. Old data is shown while new data loads. `once`: do not reload on changes. */
export function useData(read, deps, { once = false } = {}) {
  const found = useSignal({ data: undefined, error: null, busy: true, at: 0 });
  const reload = useRef(() => {});
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    let reading = false;
    async function load(quiet) {
      if (reading) return;
      reading = true;
      if (!quiet) found.value = { ...found.peek(), busy: true };
      try {
        const data = await read(stop.signal);
        if (!stop.signal.aborted) found.value = { data, error: null, busy: false, at: Date.now() };
      } catch (error) {
        if (!stop.signal.aborted) found.value = { ...found.peek(), error, busy: false };
      }
      reading = false;
    }
    reload.current = () => load(true);
    load(false);
    const unsubscribe = once
      ? () => {}
      : pulse.subscribe(() => {
          if (state.peek() === "paused" || timer || !found.peek().at) return;
          timer = setTimeout(() => {
            timer = 0;
            load(true);
          }, Math.max(0, MIN_INTERVAL_MS - (Date.now() - found.peek().at)));
        });
    return () => {
      stop.abort();
      clearTimeout(timer);
      unsubscribe();
    };
  }, deps);
  return { ...found.value, reload: () => reload.current() };
}
