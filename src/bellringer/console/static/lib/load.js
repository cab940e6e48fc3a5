// What a page shows: read when the page opens and when its terms change, and again when something has happened.
import { useEffect, useRef, useSignal } from "./html.js";
import { pulse, state } from "./live.js";

const SOONEST = 1000; // milliseconds between two readings

/** `read(stop)` answers the data; `deps` are its terms. Old data stay while new ones come. `still`: it never changes by itself. */
export function useData(read, deps, { still = false } = {}) {
  const found = useSignal({ data: undefined, error: null, busy: true, at: 0 });
  const again = useRef(() => {});
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
    again.current = () => load(true);
    load(false);
    const unsubscribe = still
      ? () => {}
      : pulse.subscribe(() => {
          if (state.peek() === "paused" || timer || !found.peek().at) return;
          timer = setTimeout(() => {
            timer = 0;
            load(true);
          }, Math.max(0, SOONEST - (Date.now() - found.peek().at)));
        });
    return () => {
      stop.abort();
      clearTimeout(timer);
      unsubscribe();
    };
  }, deps);
  return { ...found.value, again: () => again.current() };
}
