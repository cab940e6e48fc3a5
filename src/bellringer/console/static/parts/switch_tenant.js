// Shows another tenant in this tab.
import { tenant } from "../lib/preferences.js";
import { address, route } from "../lib/router.js";

/** Switches to another tenant and reloads all data. A page of one job or run is left for its list: the other tenant does not have it. */
export function switchTenant(name) {
  tenant.value = name;
  const [list] = route.peek().path.split("/");
  location.assign(address(list));
}
