// Where the explorer lives: in a notebook as an anywidget, in a page beside the data that it was written with.

import { App } from "./app.js";
import { Store } from "./store.js";

function mount(element, store, state) {
  const host = document.createElement("div");
  // Keys meant for the explorer must not run the notebook's own shortcuts. On this element and no other: to the
  // notebook it is the target of every key, since what is inside is its shadow.
  host.setAttribute("data-lm-suppress-shortcuts", "true");
  element.append(host);
  const app = new App(host, store, state);
  Object.assign(host, { paramgraph: app }); // for tests and measurements in a browser
  return app;
}

function render({ model, el }) {
  const store = new Store();
  const read = () => store.feed(model.get("_head"), model.get("_tail"));
  read();
  const app = mount(el, store, {
    get: (name) => model.get(name),
    set: (name, value) => {
      model.set(name, value);
      model.save_changes();
    },
  });
  // Several changes of one message are one update; a burst of messages is one picture.
  let waiting = 0;
  const refresh = () => {
    waiting ||= requestAnimationFrame(() => {
      waiting = 0;
      if (read()) app.update();
    });
  };
  const told = () => app.update();
  const heard = { _head: refresh, _tail: refresh, view: told, step: told, height: told };
  for (const [name, hear] of Object.entries(heard)) model.on(`change:${name}`, hear);
  return () => {
    cancelAnimationFrame(waiting);
    for (const [name, hear] of Object.entries(heard)) model.off(`change:${name}`, hear);
    app.close();
  };
}

async function page(data) {
  const packed = Uint8Array.from(atob(data.textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const store = new Store();
  store.feed(new Uint8Array(await new Response(stream).arrayBuffer()));
  const state = { view: "auto", step: store.first, height: 640 };
  const place = /** @type {HTMLElement} */ (document.getElementById("paramgraph-explorer"));
  place.hidden = false;
  const app = mount(place, store, { get: (name) => state[name], set: (name, value) => (state[name] = value) });
  // Nothing else on this page takes keys.
  document.addEventListener("keydown", (event) => {
    if (event.target === document.body) app.key(event);
  });
}

const data = typeof document === "undefined" ? null : document.getElementById("paramgraph-data");
if (data) page(data);
// The viewer's own script, which ran before, shows other traces.
if (typeof document !== "undefined") document.getElementById("paramgraph-viewer")?.dispatchEvent(new CustomEvent("paramgraph", { detail: { mount, Store } }));

export default { render };
