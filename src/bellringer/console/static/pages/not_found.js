import { html } from "../lib/html.js";
import { Empty, Link } from "../parts/elements.js";

export default () => html`<h1>Page not found</h1><${Empty} title="This page does not exist"><p>Go to the <${Link} to="">overview<//>.</p><//>`;
