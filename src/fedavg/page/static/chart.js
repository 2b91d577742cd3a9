// A line chart in SVG: as many curves as there are runs, bands, a cursor for pointer and keyboard, values as a table.

import { h, number, s, table } from "./dom.js";

const MARGIN = { top: 12, right: 18, bottom: 44, left: 62 };
const DASHES = ["", "7 4", "2 4", "10 3 2 3"];

/** The n-th of many looks: eight colours, then the same with dashes. */
export function look(index) {
  return { colour: index % 8, dash: DASHES[Math.floor(index / 8) % DASHES.length] };
}

export function sample(style) {
  return s("svg", { class: "sample", viewBox: "0 0 24 8", "aria-hidden": "true" },
    s("line", { x1: 1, x2: 23, y1: 4, y2: 4, "stroke-width": 3, class: `s${style.colour}`, "stroke-dasharray": style.dash }));
}

export function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(Number((at * step).toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  const found = [];
  const few = Math.log10(high / low) > 2;
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const digit of few ? [1] : [1, 2, 5]) {
      const at = digit * 10 ** power;
      if (at >= low * 0.999 && at <= high * 1.001) found.push(at);
    }
  }
  return found.length > 1 ? found : [low, high];
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const each of values) for (const value of each) { if (value < low) low = value; if (value > high) high = value; }
  return [low, high];
}

/**
 * spec: { label, xName, yName, xWords, yWords, log, series: [{ name, x, y, look, thin }], bands: [{ name, x, low, high, look }], lines: [{ y, words }] }
 */
export function lineChart() {
  const svg = s("svg", { "aria-hidden": "true" });
  const tip = h("div", { class: "tip", hidden: true });
  const spoken = h("p", { class: "hidden", role: "status" });
  const body = h("div");
  const values = h("details", {}, h("summary", {}, "Values as a table"), body);
  const plot = h("div", { class: "chart", tabindex: 0, role: "group" }, svg, tip);
  const names = h("ul", { class: "key" });
  const element = h("div", {}, plot, names, spoken, values);
  let spec = null, frame = null, at = null;

  function draw() {
    const width = Math.max(260, plot.clientWidth || 600);
    const height = Math.round(Math.min(380, Math.max(230, width * 0.46)));
    const positive = (value) => !spec.log || value > 0;
    const ys = [...spec.series.map((each) => each.y.filter(positive)), ...spec.bands.flatMap((each) => [each.low.filter(positive), each.high]), (spec.lines || []).map((each) => each.y)];
    let [yLow, yHigh] = extent(ys);
    let [xLow, xHigh] = extent([...spec.series, ...spec.bands].map((each) => each.x));
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    svg.replaceChildren();
    frame = null;
    if (!(yHigh >= yLow)) {
      svg.append(s("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, spec.nothing || "nothing to draw yet"));
      return;
    }
    const yTicks = spec.log ? logTicks(yLow, yHigh) : ticks(yLow, yHigh, height / 60);
    if (!spec.log) {
      const room = (yHigh - yLow || Math.abs(yHigh) || 1) * 0.06;
      [yLow, yHigh] = [yLow >= 0 && yLow < room * 3 ? 0 : yLow - room, yHigh + room];
    }
    if (xHigh === xLow) [xLow, xHigh] = [xLow - 0.5, xHigh + 0.5];
    const side = width < 480 ? { ...MARGIN, left: 48, right: 10 } : MARGIN;
    const X = (value) => side.left + (value - xLow) / (xHigh - xLow) * (width - side.left - side.right);
    const scale = spec.log ? Math.log : (value) => value;
    const Y = (value) => height - side.bottom - (scale(value) - scale(yLow)) / ((scale(yHigh) - scale(yLow)) || 1) * (height - side.top - side.bottom);
    frame = { X, Y, width, height, xLow, xHigh, side };
    for (const value of spec.log ? yTicks : ticks(yLow, yHigh, height / 60)) {
      svg.append(s("line", { class: "grid", x1: side.left, x2: width - side.right, y1: Y(value), y2: Y(value) }),
        s("text", { x: side.left - 8, y: Y(value) + 4, "text-anchor": "end" }, spec.yWords(value)));
    }
    for (const value of (spec.xTicks?.filter((each) => each >= xLow && each <= xHigh) || ticks(xLow, xHigh, width / 110)).filter((each) => spec.xName !== "round" || Number.isInteger(each))) {
      svg.append(s("line", { class: "axis", x1: X(value), x2: X(value), y1: height - side.bottom, y2: height - side.bottom + 5 }),
        s("text", { x: X(value), y: height - side.bottom + 20, "text-anchor": "middle" }, spec.xWords(value)));
    }
    svg.append(s("line", { class: "axis", x1: side.left, x2: width - side.right, y1: height - side.bottom, y2: height - side.bottom }),
      s("text", { class: "strong", x: (side.left + width - side.right) / 2, y: height - 6, "text-anchor": "middle" }, spec.xName));
    for (const each of spec.lines || []) {
      svg.append(s("line", { class: "target", x1: side.left, x2: width - side.right, y1: Y(each.y), y2: Y(each.y) }),
        s("text", { x: width - side.right, y: Y(each.y) - 5, "text-anchor": "end" }, each.words));
    }
    for (const each of spec.bands) {
      const there = each.x.map((x, i) => [X(x), Y(each.high[i])]), back = each.x.map((x, i) => [X(x), Y(positive(each.low[i]) ? each.low[i] : yLow)]).reverse();
      svg.append(s("path", { class: `area f${each.look.colour}`, d: path([...there, ...back]) + "Z" }));
    }
    for (const each of spec.series) {
      const points = each.x.map((x, i) => [x, each.y[i]]).filter((point) => positive(point[1])).map(([x, y]) => [X(x), Y(y)]);
      if (!points.length) continue;
      const classes = `s${each.look.colour}`;
      svg.append(s("path", { class: `curve ${classes} ${each.thin ? "thin" : ""}`, d: path(points), "stroke-dasharray": each.look.dash || null }));
      if (points.length === 1) svg.append(s("circle", { class: `f${each.look.colour}`, cx: points[0][0], cy: points[0][1], r: 3.5 }));
    }
    if (at !== null) point(at, false);
  }

  function nearest(xs, x) {
    let low = 0, high = xs.length - 1;
    while (low < high) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle + 1; else high = middle; }
    return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
  }

  function point(x, aloud) {
    if (!frame) return;
    at = x;
    svg.querySelector("g.marks")?.remove();
    const found = spec.series.filter((each) => each.x.length && (!each.thin || !spec.bands.length)).map((each) => ({ each, i: nearest(each.x, x) })).filter(({ each, i }) => Math.abs(frame.X(each.x[i]) - frame.X(x)) < 40);
    if (!found.length) { leave(); return; }
    const marks = s("g", { class: "marks" }, s("line", { class: "cursor", x1: frame.X(x), x2: frame.X(x), y1: frame.side.top, y2: frame.height - frame.side.bottom }));
    for (const { each, i } of found) if (!spec.log || each.y[i] > 0) marks.append(s("circle", { class: `f${each.look.colour}`, cx: frame.X(each.x[i]), cy: frame.Y(each.y[i]), r: 4 }));
    svg.append(marks);
    found.sort((a, b) => b.each.y[b.i] - a.each.y[a.i]);
    const where = `${spec.xName} ${spec.xWords(found[0].each.x[found[0].i])}`;
    tip.replaceChildren(h("p", {}, where), h("ul", {}, found.slice(0, 12).map(({ each, i }) =>
      h("li", {}, sample(each.look), h("span", {}, each.name), h("b", {}, spec.yWords(each.y[i]))))), found.length > 12 ? h("p", {}, `and ${found.length - 12} more`) : "");
    tip.hidden = false;
    const right = frame.X(x) > frame.width / 2;
    tip.style.left = right ? "auto" : `${frame.X(x) + 14}px`;
    tip.style.right = right ? `${frame.width - frame.X(x) + 14}px` : "auto";
    if (aloud) spoken.textContent = `${where}: ${found.slice(0, 8).map(({ each, i }) => `${each.name} ${spec.yWords(each.y[i])}`).join("; ")}`;
  }

  function leave() {
    at = null;
    tip.hidden = true;
    svg.querySelector("g.marks")?.remove();
  }

  function move(event) {
    if (!frame) return;
    const box = svg.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width * frame.width - frame.side.left) / (frame.width - frame.side.left - frame.side.right);
    if (share < -0.02 || share > 1.02) { leave(); return; }
    point(frame.xLow + Math.max(0, Math.min(1, share)) * (frame.xHigh - frame.xLow), false);
  }

  function key(event) {
    const xs = [...new Set(spec.series.flatMap((each) => each.x))].sort((a, b) => a - b);
    if (!xs.length) return;
    const now = at === null ? -1 : nearest(xs, at);
    const jump = Math.max(1, Math.round(xs.length / 20));
    const steps = { ArrowRight: now + 1, ArrowLeft: now < 0 ? xs.length - 1 : now - 1, PageDown: now + jump, PageUp: now - jump, Home: 0, End: xs.length - 1 };
    if (event.key === "Escape") { leave(); return; }
    if (!(event.key in steps)) return;
    event.preventDefault();
    point(xs[Math.max(0, Math.min(xs.length - 1, steps[event.key]))], true);
  }

  function tell() {
    const rows = spec.series.filter((each) => each.y.length).map((each) => {
      const [low, high] = extent([each.y]);
      return [each.name, spec.yWords(each.y[0]), spec.yWords(low), spec.yWords(high), spec.yWords(each.y.at(-1)), spec.xWords(each.x.at(-1))];
    });
    const heads = ["curve", ...["first", "lowest", "highest", "last", `last ${spec.xName}`].map((name) => ({ name, number: true }))];
    body.replaceChildren(table(spec.label, heads, rows));
  }

  plot.addEventListener("pointermove", move);
  plot.addEventListener("pointerleave", leave);
  plot.addEventListener("keydown", key);
  plot.addEventListener("blur", leave);
  values.addEventListener("toggle", () => { if (values.open && spec) tell(); });
  new ResizeObserver(() => { if (spec) draw(); }).observe(plot);

  return {
    element,
    draw(next) {
      spec = { xWords: number, yWords: number, bands: [], ...next };
      names.replaceChildren(...(spec.key ? spec.series.filter((each) => !each.thin).map((each) => h("li", {}, sample(each.look), each.name)) : []));
      names.hidden = !spec.key;
      const said = spec.series.slice(0, 6).map((each) => `${each.name}, last ${each.y.length ? spec.yWords(each.y.at(-1)) : "none"}`);
      plot.setAttribute("aria-label", `Chart: ${spec.label}. ${spec.series.length} curves. ${said.join(". ")}. Use the arrow keys to read values.`);
      draw();
      if (values.open) tell();
    },
  };
}

export function path(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}
