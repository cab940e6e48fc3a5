import { html } from "../lib/html.js";
import { Empty, Link } from "../parts/basics.js";

export default () => html`<h1>Not here</h1><${Empty} title="There is no such page"><p>Go back, or to the <${Link} to="">overview<//>.</p><//>`;
