// Elements from text: nothing here, or anywhere else, puts markup of a trace into the page.

/**
 * `h("div.row.chosen", {role: "group"}, children...)`; the attributes may be left out.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T | `${T}.${string}`} tag
 * @param {any} attributes
 * @param {any[]} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function h(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = /** @type {HTMLElementTagNameMap[T]} */ (document.createElement(name));
  if (classes.length) element.className = classes.join(" ");
  if (attributes?.constructor !== Object) children.unshift(attributes);
  else {
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) on(element, key.slice(2), value);
      else if (key === "label") element.setAttribute("aria-label", value);
      else if (key === "class") element.className = value;
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
    }
  }
  element.append(...solid(children));
  return element;
}

/** Nested lists made flat, without what is not there. */
export function solid(children) {
  return [children].flat(Infinity).filter((child) => child || child === 0);
}

export function link(label, onclick, attributes = {}) {
  return button(label, onclick, { class: "link", ...attributes });
}

export function button(label, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, label);
}

/** A button with a sign on it: what it does is said by its label, and with its key by its title. */
export function tool(sign, label, key, onclick, attributes = {}) {
  return button(sign, onclick, { label, title: `${label} (${key})`, ...attributes });
}

/** `target.addEventListener(...)`, of which the bundle has many. @param {any} target @param {any[]} rest */
export function on(target, ...rest) {
  target.addEventListener(...rest);
}

/** A table that is made when it is opened: the same as the picture, for whoever cannot see it. */
/** @param {() => any} make */
export function asTable(make) {
  const rows = h("div.rows");
  const fill = () => element.open && rows.replaceChildren(...solid(make()));
  const element = h("details.astable", { ontoggle: () => fill() }, h("summary", "as a table"), rows);
  return { element, fill };
}

export function table(heads, rows, attributes = {}) {
  const body = rows.map((row) => h("tr", row.map((cell) => h("td", cell))));
  return h("table", attributes, h("thead", h("tr", heads.map((head) => h("th", { scope: "col" }, head)))), h("tbody", body));
}
