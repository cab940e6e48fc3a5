// Notifications of the browser about new items that need attention, while the console is open in a tab that is not visible. They are off until
// the user turns them on here, and the browser asks for permission only then.
import { html, effect, signal, useEffect, useState } from "../lib/html.js";
import { get, loginRequired } from "../lib/api.js";
import { state as live } from "../lib/live.js";
import { notifications } from "../lib/preferences.js";
import { navigate } from "../lib/router.js";
import { Checkbox } from "./field.js";

const INTERVAL_MS = 60_000; // milliseconds; browsers run timers of hidden tabs at most once a minute
const MAX_SHOWN = 3; // more new items share one notification
const LOCK = "bellringer.notifications"; // one tab of the browser notifies

const isSupported = "Notification" in globalThis;
const permission = signal(isSupported ? Notification.permission : "denied");
const keyOf = (item) => [item.kind, item.run_id ?? item.job_id ?? item.pool ?? item.text].join(" ");
const loadItems = async () => (await get("overview", { range: "1h" })).attention;

function show(title, options, path) {
  const shown = new Notification(title, { icon: new URL("static/icon.svg", document.baseURI).href, ...options });
  shown.onclick = () => {
    focus();
    navigate(path);
    shown.close();
  };
}

const pathOf = (item) => (item.run_id ? `runs/${encodeURIComponent(item.run_id)}` : item.job_id ? `jobs/${encodeURIComponent(item.job_id)}` : "");

/** Shows a notification for each item that was not there before. Items that were there when the tab was hidden are known to the user. */
async function check(known) {
  const items = await loadItems();
  const fresh = known ? items.filter((item) => !known.has(keyOf(item))) : [];
  if (document.hidden && fresh.length > MAX_SHOWN) show(`${fresh.length} new items need attention`, { body: fresh[0].text, tag: "bellringer" }, "");
  else if (document.hidden) for (const item of fresh) show(item.job ?? item.pool ?? "Bellringer", { body: item.text, tag: keyOf(item) }, pathOf(item));
  return new Set(items.map(keyOf));
}

async function watch(stop) {
  let known = null;
  while (!stop.aborted) {
    known = await check(known).catch(() => known); // the server may be away for a while
    await new Promise((later) => {
      const timer = setTimeout(later, INTERVAL_MS);
      stop.addEventListener("abort", () => (clearTimeout(timer), later()), { once: true });
    });
  }
}

const isHidden = signal(document.hidden);
document.addEventListener("visibilitychange", () => (isHidden.value = document.hidden));

let watching = null;
/** Watches while the user wants notifications and the tab is hidden. Paused live updates send no requests, so they pause this too. */
effect(() => {
  const wanted = notifications.value === "on" && permission.value === "granted" && isHidden.value && live.value !== "paused" && !loginRequired.value;
  if (wanted === Boolean(watching)) return;
  if (!wanted) {
    watching.abort();
    watching = null;
    return;
  }
  watching = new AbortController();
  const { signal: stop } = watching;
  if (navigator.locks) navigator.locks.request(LOCK, { signal: stop }, () => watch(stop)).catch(() => {});
  else watch(stop);
});

const HINTS = {
  default: "about new items that need attention, while this tab is open but not visible",
  granted: "about new items that need attention, while this tab is open but not visible",
  denied: "blocked by the browser for this site; allow notifications in its site settings first",
};

/** The preference. The browser is asked for permission when the user turns it on. */
export function NotificationPreference() {
  const [asking, setAsking] = useState(false);
  useEffect(() => {
    if (isSupported) permission.value = Notification.permission; // the user may have changed it in the browser
  }, []);
  async function choose(on) {
    if (!on) return void (notifications.value = "off");
    setAsking(true);
    permission.value = await Notification.requestPermission();
    setAsking(false);
    if (permission.value === "granted") notifications.value = "on";
  }
  const isOn = notifications.value === "on" && permission.value === "granted";
  if (!isSupported) return null;
  return html`<${Checkbox} label="Browser notifications" hint=${HINTS[permission.value]} value=${isOn} disabled=${asking || permission.value === "denied"} set=${choose} />`;
}
