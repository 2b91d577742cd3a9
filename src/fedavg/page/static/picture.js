// Smaller pictures: bars in words, bars over clients, a map of labels, dots, spans of time. Each can be read as a table.

import { ticks } from "./chart.js";
import { h, number, s, table } from "./dom.js";

/** Named shares as one bar and a key: [{ name, value, colour, more }]. */
export function shareBar(label, items) {
  const whole = items.reduce((sum, item) => sum + item.value, 0) || 1;
  const svg = s("svg", { viewBox: "0 0 1000 26", preserveAspectRatio: "none", height: 26, width: "100%", role: "img", "aria-label": `${label}: ${items.map((item) => `${item.value} ${item.name}`).join(", ")}` });
  let at = 0;
  for (const item of items.filter((each) => each.value > 0)) {
    const width = item.value / whole * 1000;
    svg.append(s("rect", { x: at, y: 0, width: Math.max(1, width - (at + width < 999 ? 3 : 0)), height: 26, rx: 3, class: `f${item.colour}` }));
    at += width;
  }
  return h("div", { class: "chart" }, svg, h("ul", { class: "key" }, items.map((item) => h("li", {}, h("span", { class: `swatch b${item.colour}` }), `${item.name} `, h("strong", {}, number(item.value))))));
}

/** Something against its limit, in words and as a bar. */
export function against(label, value, limit, words, good) {
  const inner = h("span");
  inner.style.width = `${Math.max(0, Math.min(1, value / limit)) * 100}%`;
  return h("div", {}, h("p", {}, label), h("span", { class: `meter broad ${good ? "" : "over"}`, role: "img", "aria-label": words }, inner), h("p", { class: "sub" }, words));
}

/** A place for a picture that is drawn anew when its width changes. */
export function resized(draw) {
  const plot = h("div", { class: "chart" });
  let width = 0;
  new ResizeObserver(() => { if (plot.clientWidth && plot.clientWidth !== width) { width = plot.clientWidth; draw(plot, width); } }).observe(plot);
  return plot;
}

/** The same as a table, made when it is asked for. */
export function told(label, heads, rows) {
  const body = h("div");
  const details = h("details", { ontoggle: () => { if (details.open && !body.childNodes.length) body.append(table(label, heads, rows())); } }, h("summary", {}, "Values as a table"), body);
  return details;
}

function yAxis(svg, values, Y, left, right, words = number) {
  for (const value of values) {
    svg.append(s("line", { class: "grid", x1: left, x2: right, y1: Y(value), y2: Y(value) }), s("text", { x: left - 8, y: Y(value) + 4, "text-anchor": "end" }, words(value)));
  }
}

/** A bar for each client, in the order given: { label, xName, yName, names, values, colour }. */
export function bars(spec) {
  const plot = resized((element, width) => {
    const height = 190, left = 48, bottom = 38, top = 10;
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": spec.label });
    const high = Math.max(...spec.values, 1);
    const Y = (value) => height - bottom - value / high * (height - bottom - top);
    yAxis(svg, ticks(0, high, 4), Y, left, width);
    const step = (width - left) / spec.values.length;
    spec.values.forEach((value, i) => svg.append(s("rect", { class: `f${spec.colour ?? 0}`, x: left + i * step + step * 0.1, width: Math.max(0.5, step * 0.8), y: Y(value), height: Math.max(0, height - bottom - Y(value)) }, s("title", {}, `${spec.names[i]}: ${number(value)}`))));
    const every = Math.max(1, Math.ceil(spec.values.length / (width / 60)));
    spec.names.forEach((name, i) => { if (i % every === 0) svg.append(s("text", { x: left + (i + 0.5) * step, y: height - bottom + 16, "text-anchor": "middle" }, name)); });
    svg.append(s("line", { class: "axis", x1: left, x2: width, y1: height - bottom, y2: height - bottom }), s("text", { class: "strong", x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, spec.xName));
    element.replaceChildren(svg);
  });
  return h("div", {}, plot, told(spec.label, [spec.xName, { name: spec.yName, number: true }], () => spec.names.map((name, i) => [name, number(spec.values[i])])));
}

/** Clients along, labels down, and how much of a client's examples has the label: { label, clients, labels, counts }. */
export function labelMap(spec) {
  const plot = resized((element, width) => {
    const left = 48, bottom = 38, row = Math.max(7, Math.min(20, 240 / spec.labels.length)), height = row * spec.labels.length + bottom;
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": spec.label });
    const step = (width - left) / spec.clients.length;
    spec.counts.forEach((counts, i) => {
      const whole = counts.reduce((sum, count) => sum + count, 0) || 1;
      counts.forEach((count, j) => svg.append(s("rect", { class: count ? "f0" : "mute", "fill-opacity": count ? (0.15 + 0.85 * Math.sqrt(count / whole)).toFixed(3) : 0.35, x: left + i * step, y: j * row, width: Math.max(0.6, step - (step > 4 ? 1 : 0)), height: row - 1 })));
    });
    const every = Math.ceil(16 / row);
    spec.labels.forEach((name, j) => { if (j % every === 0) svg.append(s("text", { x: left - 8, y: (j + 0.5) * row + 4, "text-anchor": "end" }, name)); });
    const skip = Math.max(1, Math.ceil(spec.clients.length / (width / 60)));
    spec.clients.forEach((name, i) => { if (i % skip === 0) svg.append(s("text", { x: left + (i + 0.5) * step, y: height - bottom + 16, "text-anchor": "middle" }, name)); });
    svg.append(s("text", { class: "strong", x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "client"));
    element.replaceChildren(svg);
  });
  return h("div", {}, plot, told(spec.label, ["client", ...spec.labels.map((name) => ({ name: `label ${name}`, number: true }))], () => spec.clients.map((client, i) => [String(client), ...spec.counts[i].map(number)])));
}

/** A dot for each client: { label, xName, yName, points: [{ name, x, y }] }, with a cursor for pointer and arrow keys. */
export function dots(spec) {
  const tip = h("div", { class: "tip", hidden: true }), spoken = h("p", { class: "hidden", role: "status" });
  let frame = null, at = -1;
  const plot = resized((element, width) => {
    const height = Math.round(Math.min(320, Math.max(220, width * 0.5))), left = 52, bottom = 44, top = 10, right = 14;
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
    const xHigh = Math.max(...spec.points.map((point) => point.x)) * 1.06 || 1;
    const X = (value) => left + value / xHigh * (width - left - right), Y = (value) => top + (1 - value) / 2 * (height - top - bottom);
    yAxis(svg, [-1, -0.5, 0, 0.5, 1], Y, left, width - right);
    for (const value of ticks(0, xHigh, width / 90)) svg.append(s("text", { x: X(value), y: height - bottom + 18, "text-anchor": "middle" }, number(value)));
    svg.append(s("line", { class: "axis", x1: left, x2: width - right, y1: Y(-1), y2: Y(-1) }), s("line", { class: "target", x1: left, x2: width - right, y1: Y(0), y2: Y(0) }),
      s("text", { class: "strong", x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, spec.xName));
    for (const point of spec.points) svg.append(s("circle", { class: point.y < 0 ? "f1" : "f0", "fill-opacity": 0.75, cx: X(point.x), cy: Y(point.y), r: 5 }));
    frame = { X, Y, svg, width };
    element.replaceChildren(svg, tip);
  });
  plot.tabIndex = 0;
  plot.setAttribute("role", "group");
  plot.setAttribute("aria-label", `Chart: ${spec.label}. ${spec.points.length} clients. Use the arrow keys to read values.`);
  const order = [...spec.points].sort((a, b) => a.x - b.x);

  function show(index) {
    if (!frame || index < 0) return;
    at = index;
    const point = order[index];
    frame.svg.querySelector(".marks")?.remove();
    frame.svg.append(s("circle", { class: "marks cursor", fill: "none", cx: frame.X(point.x), cy: frame.Y(point.y), r: 9 }));
    tip.replaceChildren(h("p", {}, point.name), `${spec.xName} ${number(point.x)}`, h("br"), `${spec.yName} ${number(point.y)}`);
    tip.hidden = false;
    const right = frame.X(point.x) > frame.width / 2;
    tip.style.left = right ? "auto" : `${frame.X(point.x) + 16}px`;
    tip.style.right = right ? `${frame.width - frame.X(point.x) + 16}px` : "auto";
    spoken.textContent = `${point.name}: ${spec.xName} ${number(point.x)}, ${spec.yName} ${number(point.y)}`;
  }

  function leave() { tip.hidden = true; at = -1; frame?.svg.querySelector(".marks")?.remove(); }

  plot.addEventListener("pointermove", (event) => {
    const box = frame.svg.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const far = order.map((point) => Math.hypot(frame.X(point.x) - x, frame.Y(point.y) - y));
    const near = far.indexOf(Math.min(...far));
    if (far[near] < 30) show(near); else leave();
  });
  plot.addEventListener("pointerleave", leave);
  plot.addEventListener("blur", leave);
  plot.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: at + 1, ArrowLeft: at < 0 ? order.length - 1 : at - 1, Home: 0, End: order.length - 1 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    show(Math.max(0, Math.min(order.length - 1, steps[event.key])));
  });
  return h("div", {}, plot, spoken, told(spec.label, ["client", { name: spec.xName, number: true }, { name: spec.yName, number: true }], () => order.map((point) => [point.name, number(point.x), number(point.y)])));
}

