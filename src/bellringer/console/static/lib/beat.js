// What no pulse tells of, such as leases that are renewed: read again every so many seconds, while the page is seen and not paused.
import { useEffect } from "./html.js";
import { state } from "./live.js";

/** found: as `useData` answers it. */
export function useBeat(found, seconds) {
  useEffect(() => {
    const timer = setInterval(() => state.peek() === "paused" || document.hidden || found.again(), seconds * 1000);
    return () => clearInterval(timer);
  }, []);
}
