// Polling for data whose changes the live stream does not announce, such as lease renewals.
import { useEffect } from "./html.js";
import { state } from "./live.js";

/** Reloads `found` (a result of `useData`) at this interval, unless the page is hidden or live updates are paused. */
export function usePolling(found, seconds) {
  useEffect(() => {
    const timer = setInterval(() => state.peek() === "paused" || document.hidden || found.reload(), seconds * 1000);
    return () => clearInterval(timer);
  }, []);
}
