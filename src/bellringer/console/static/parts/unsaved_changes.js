// Asks before unsaved input is lost: by a link, a shortcut, the palette, Back, or when the tab is closed or reloaded.
import { html, useEffect } from "../lib/html.js";
import { askBeforeLeaving } from "../lib/router.js";
import { openDialog } from "./dialog.js";

const holdUnload = (event) => event.preventDefault(); // the browser asks in its own words

/** While `changed`, asks before the page is left. */
export function useUnsavedWarning(changed) {
  useEffect(() => {
    if (!changed) return undefined;
    addEventListener("beforeunload", holdUnload);
    const release = askBeforeLeaving((go) => openDialog("Leave without saving?", ({ close }) => html`<${Question} close=${close} go=${go} />`));
    return () => {
      removeEventListener("beforeunload", holdUnload);
      release();
    };
  }, [changed]);
}

function Question({ close, go }) {
  const leave = () => {
    close();
    go();
  };
  return html`<p>Your changes on this page have not been saved. If you leave, they are lost.</p>
    <div class="actions"><button type="button" autofocus onClick=${close}>Keep editing</button>
      <button type="button" class="danger" onClick=${leave}>Leave without saving</button></div>`;
}
