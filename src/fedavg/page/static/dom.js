// Elements and words. All text goes in as text: a run may be named anything, also "<script>".

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "open") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** A region that scrolls sideways, also by keyboard. */
export function scrolling(label, ...children) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, ...children);
}

export function card(title, ...children) {
  return h("section", { class: "card" }, h("h2", {}, title), ...children);
}

export function facts(pairs) {
  const shown = pairs.filter((pair) => pair && pair[1] !== null && pair[1] !== undefined);
  return h("dl", { class: "facts" }, shown.map(([name, value, more]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, String(value), more ? h("small", {}, more) : null))));
}

export function table(caption, heads, rows) {
  return scrolling(caption, h("table", {}, h("caption", { class: "hidden" }, caption),
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col", class: head.number ? "number" : null }, head.name ?? head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, index) =>
      index ? h("td", { class: heads[index].number ? "number" : "wide" }, cell) : h("th", { scope: "row", class: "wide" }, cell)))))));
}

export function choice(label, options, value, change) {
  const select = h("select", { onchange: () => change(select.value) });
  fillChoice(select, options, value);
  return { element: h("label", {}, label, select), select };
}

/** Options are [value, words]; the list is left as it is if it is the same, so that an open one stays open. */
export function fillChoice(select, options, value) {
  const told = JSON.stringify(options);
  if (select.dataset.told !== told) {
    select.replaceChildren(...options.map(([each, words]) => h("option", { value: each }, words)));
    select.dataset.told = told;
  }
  select.value = value;
}

export function meter(share, words, kind = "") {
  const inner = h("span");
  inner.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("span", { class: `meter ${kind}`, role: "img", "aria-label": words }, inner);
}

// Numbers in words

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace("e+", "e").replace("-", "−");
  const words = Number.isInteger(value) ? value.toLocaleString("en") : value.toLocaleString("en", { maximumSignificantDigits: size < 1 ? 4 : 5 });
  return words.replace("-", "−");
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  while (Math.abs(value) >= 1000 && place < units.length - 1) { value /= 1000; place += 1; }
  return `${value.toLocaleString("en", { maximumSignificantDigits: 3 })} ${units[place]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds.toLocaleString("en", { maximumSignificantDigits: 3 })} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds - 60 * minutes)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes - 60 * hours} min`;
  return `${(hours / 24).toLocaleString("en", { maximumFractionDigits: 1 })} d`;
}

const NAMES = {
  train_loss: "training loss", bytes_up: "bytes up", bytes_down: "bytes down", eval_seconds: "seconds of evaluation",
  simulated_s: "simulated seconds", epsilon: "epsilon", lr: "learning rate", clients: "clients that reported",
  examples: "examples", saturated: "saturated numbers", seconds: "seconds of training",
};

/** A column's path in words: "test.accuracy" is "accuracy (test)". */
export function column(path) {
  if (NAMES[path]) return NAMES[path];
  const [first, ...rest] = path.split(".");
  if (first === "test" || first === "train") return `${rest.join(".")} (${first === "test" ? "test set" : "training set"})`;
  if (path.startsWith("on_clients.metrics.")) return `${rest.slice(1).join(".")} (on clients)`;
  if (path.startsWith("on_clients.spread.")) return `${rest[1]} over clients: ${(rest[2] || "").replace("_", " ")}`;
  if (first === "metrics") return `${rest.join(".")} (of the algorithm)`;
  return path.replaceAll("_", " ").replaceAll(".", ": ");
}

const KINDS = { running: "running", reading: "running", finished: "finished", "target reached": "finished",
  "budget spent": "finished", "no improvement": "finished", damaged: "broken", torn: "broken", foreign: "odd" };

export function stateBadge(word) {
  return h("span", { class: `state ${KINDS[word] || ""}` }, word);
}
