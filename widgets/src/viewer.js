// The page that shows trace files: dropped on it, chosen, or from its gallery. It runs beside the explorer's own script,
// which hands over what it mounts with.

import { linesOf, unpack } from "./pgtrace.js";

const place = document.getElementById("paramgraph-viewer");
place?.addEventListener("paramgraph", (event) => start(/** @type {CustomEvent} */ (event).detail), { once: true });

function start({ mount, Store }) {
  const { families, gallery } = JSON.parse(document.getElementById("paramgraph-gallery")?.textContent ?? "{}");
  const said = /** @type {HTMLElement} */ (document.getElementById("said"));
  const input = /** @type {HTMLInputElement} */ (document.getElementById("files"));
  const frame = /** @type {HTMLElement} */ (document.getElementById("paramgraph-explorer"));
  /** @type {any} */
  let app = null;

  /** Traces by name, as the steps of one view; the address of the page keeps what came from the gallery. */
  const show = (documents, from = "") => {
    const store = new Store();
    store.feed(new TextEncoder().encode(linesOf(documents, families).map((line) => JSON.stringify(line)).join("\n")));
    app?.close();
    frame.replaceChildren();
    frame.hidden = false;
    const state = { view: "auto", step: store.first, height: 720 };
    app = mount(frame, store, { get: (name) => state[name], set: (name, value) => (state[name] = value) });
    said.textContent = "";
    history.replaceState(null, "", from ? `#${from}` : location.pathname + location.search);
    frame.scrollIntoView({ block: "nearest" });
    const whole = /** @type {HTMLElement | null | undefined} */ (frame.firstElementChild?.shadowRoot?.querySelector(".app"));
    whole?.focus({ preventScroll: true }); // so that keys are meant for it, whatever was pressed to open it
  };

  const read = async (list) => {
    const documents = [];
    for (const file of list) {
      try {
        const packed = new Uint8Array(await file.arrayBuffer());
        if (packed[0] === 0x80) throw new Error("a memory snapshot of torch's? paramgraph_kit.load reads it in Python, and save makes a .pgtrace of it");
        documents.push([file.name.replace(/\.pgtrace$/, ""), await unpack(packed)]);
      } catch (error) {
        said.textContent = `${file.name}: ${/** @type {Error} */ (error).message}`;
        return;
      }
    }
    if (documents.length) show(documents);
  };

  const open = async (names) => {
    const chosen = names.map((name) => gallery.find((one) => one.name === name)).filter(Boolean);
    const documents = [];
    for (const { name, data } of chosen) documents.push([name, await unpack(Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)))]);
    if (documents.length) show(documents, names.join("+"));
  };

  input.addEventListener("change", () => read(input.files));
  for (const one of document.querySelectorAll("[data-open]")) one.addEventListener("click", () => open((one.getAttribute("data-open") ?? "").split("+")));
  // The whole page takes files.
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    place?.classList.add("over");
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget ?? place?.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    place?.classList.remove("over");
    if (event.dataTransfer) read(event.dataTransfer.files);
  });
  document.addEventListener("keydown", (event) => {
    if (event.target === document.body) app?.key(event);
  });
  const asked = decodeURIComponent(location.hash.slice(1));
  if (asked) open(asked.split("+"));
}
