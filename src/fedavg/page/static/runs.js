// The runs: their curves over each other, what they cost, and what differs between their plans.

import { lineChart, look, sample } from "./chart.js";
import { bytes, card, choice, column, duration, fillChoice, h, meter, number, scrolling, stateBadge } from "./dom.js";
import { ask, exported } from "./source.js";

const AXES = { round: ["round", "by round", number], bytes: ["bytes sent, up and down", "by bytes sent", bytes], time: ["real time", "by real time", duration], simulated: ["simulated time", "by simulated time", duration] };
const MOST = 20;

function usual(columns) {
  return ["test.accuracy", "on_clients.metrics.accuracy", "test.loss"].find((name) => columns.includes(name)) || columns[0] || "";
}

export function runsView(parameters, go) {
  const chart = lineChart();
  const title = h("h1", {}, "Runs"), under = h("p", { class: "sub" });
  const x = choice("x", Object.entries(AXES).map(([value, words]) => [value, words[1]]), "round", (value) => set({ x: value }));
  const y = choice("y", [], "", (value) => set({ y: value }));
  const log = h("input", { type: "checkbox", onchange: () => set({ log: log.checked ? "1" : "" }) });
  const seeds = h("input", { type: "checkbox", onchange: () => set({ lines: seeds.checked ? "" : "1" }) });
  const seedsLabel = h("label", {}, seeds, "band over seeds");
  const filter = h("input", { type: "text", oninput: () => fill(), "aria-label": "Filter runs by name" });
  filter.placeholder = "filter by name";
  const rows = h("tbody");
  const heads = h("tr");
  const listed = scrolling("Runs", h("table", {}, h("caption", { class: "hidden" }, "Runs; those that are checked are drawn"), h("thead", {}, heads), rows));
  const nothing = h("p", { class: "empty", hidden: true });
  const differs = h("div");
  const element = h("div", { class: "view" });
  let index = null, told = "", asked = 0;

  element.append(
    h("div", { class: "head" }, h("div", {}, title, under)),
    h("section", { class: "card", "aria-label": "Curves" }, h("div", { class: "row top-line controls" }, h("div", { class: "row" }, y.element, x.element), h("div", { class: "row" }, seedsLabel, h("label", {}, log, "log scale"))), chart.element),
    h("section", { class: "card" }, h("div", { class: "row top-line" }, h("h2", {}, "All runs"), h("div", { class: "row" }, filter,
      h("button", { type: "button", onclick: () => check(true) }, "Check all"), h("button", { type: "button", onclick: () => check(false) }, "Uncheck all"))), listed, nothing),
    differs);

  function set(changes) { go("runs", { ...parameters, ...changes }); }

  function drawnIds() {
    if (parameters.runs !== undefined) return new Set(parameters.runs.split(",").filter(Boolean));
    const recent = [...index.runs].filter((run) => run.rounds).sort((a, b) => b.changed - a.changed).slice(0, MOST);
    return new Set(recent.map((run) => run.id));
  }

  /** Runs that differ in their seeds alone look alike while they are drawn as a band. */
  function lookOf(run) {
    if (parameters.lines) return look(index.runs.indexOf(run));
    return look([...new Set(index.runs.map((each) => each.group))].indexOf(run.group));
  }

  function visible() {
    const wanted = filter.value.trim().toLowerCase();
    return index.runs.filter((run) => run.name.toLowerCase().includes(wanted));
  }

  function check(all) {
    const now = drawnIds();
    for (const run of visible()) { if (all) now.add(run.id); else now.delete(run.id); }
    set({ runs: [...now].join(",") });
  }

  function toggle(id, on) {
    const now = drawnIds();
    if (on) now.add(id); else now.delete(id);
    set({ runs: [...now].join(",") });
  }

  function cells(run) {
    const y = parameters.y || usual(index.columns);
    const spent = run.last.epsilon;
    const box = h("input", { type: "checkbox", checked: drawnIds().has(run.id), onchange: () => toggle(run.id, box.checked) });
    const share = run.planned ? run.rounds / run.planned : 0;
    return [
      h("th", { scope: "row", class: "name" }, h("label", {}, box, sample(lookOf(run)), h("span", {}, run.name)), run.notes.map((note) => h("div", { class: "note" }, note))),
      h("td", {}, stateBadge(run.state)),
      h("td", { class: "number" }, run.planned && share < 1 ? meter(share, `${run.rounds} of ${run.planned} rounds`) : null, `${number(run.rounds)}${run.planned ? ` / ${number(run.planned)}` : ""}`),
      h("td", { class: "number" }, number(run.last[y])),
      h("td", { class: "number" }, bytes(run.bytes_up)),
      h("td", { class: "number" }, bytes(run.bytes_down)),
      h("td", { class: "number" }, duration(run.seconds)),
      index.runs.some((each) => each.last.epsilon !== undefined) ? h("td", { class: "number" }, spent === undefined ? "–" : `${number(spent)}${run.plan.dp_epsilon ? ` of ${number(run.plan.dp_epsilon)}` : ""}`) : null,
      h("td", {}, run.rounds ? h("a", { href: `#/round?run=${run.id}` }, "rounds", h("span", { class: "hidden" }, ` of ${run.name}`)) : null),
    ].filter(Boolean);
  }

  function fill() {
    const y = parameters.y || usual(index.columns);
    const names = ["run", "state", "rounds", column(y), "up", "down", "real time", index.runs.some((run) => run.last.epsilon !== undefined) ? "epsilon" : null, ""].filter((name) => name !== null);
    heads.replaceChildren(...names.map((name, place) => name ? h("th", { scope: "col", class: place > 1 ? "number" : null }, name) : h("td", {})));
    const focused = rows.contains(document.activeElement) ? document.activeElement.closest("tr")?.dataset.id : null;
    const shown = visible();
    rows.replaceChildren(...shown.map((run) => h("tr", { class: drawnIds().has(run.id) ? null : "off", "data-id": run.id }, cells(run))));
    if (focused) rows.querySelector(`tr[data-id="${focused}"] input`)?.focus();
    listed.hidden = !index.runs.length;
    nothing.hidden = shown.length > 0;
    nothing.textContent = index.runs.length ? "No run has such a name." : "There is no run here yet. Start one with: fedavg run mnist-2nn";
  }

  function fillDifferences() {
    const drawn = index.runs.filter((run) => drawnIds().has(run.id) && Object.keys(run.plan).length);
    const options = index.options.filter((name) => new Set(drawn.map((run) => JSON.stringify(run.plan[name]))).size > 1);
    if (drawn.length < 2) { differs.replaceChildren(); return; }
    if (!options.length) { differs.replaceChildren(card("What differs between the plans", h("p", { class: "sub" }, "Nothing: these runs have the same plan."))); return; }
    differs.replaceChildren(card("What differs between the plans", scrolling("Options that differ between the plans", h("table", {},
      h("caption", { class: "hidden" }, "Options in which the plans of the drawn runs differ"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "run"), options.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, drawn.map((run) => h("tr", {}, h("th", { scope: "row", class: "name" }, h("label", {}, sample(lookOf(run)), h("span", {}, run.name))),
        options.map((name) => h("td", { class: "wide" }, words(run.plan[name]))))))))));
  }

  function words(value) {
    if (value === undefined) return "–";
    return Array.isArray(value) ? value.join(", ") || "none" : String(value);
  }

  async function drawCurves() {
    const turn = ++asked;
    const ids = index.runs.filter((run) => drawnIds().has(run.id)).map((run) => run.id);
    const axis = parameters.x || "round", quantity = parameters.y || usual(index.columns);
    const answer = exported ? await ask(`curves?x=${axis}&y=${quantity}`) : await ask(`curves?x=${encodeURIComponent(axis)}&y=${encodeURIComponent(quantity)}${ids.map((id) => `&run=${id}`).join("")}`);
    if (turn !== asked) return;
    const known = Object.fromEntries(index.runs.map((run) => [run.id, run]));
    const bands = answer.bands.filter((band) => band.runs.some((id) => ids.includes(id)));
    seedsLabel.hidden = !bands.length;
    const banded = parameters.lines ? [] : bands;
    const inBand = new Set(banded.flatMap((band) => band.runs));
    const series = answer.curves.filter((each) => ids.includes(each.run)).map((each) => ({ name: known[each.run].name, x: each.x, y: each.y, look: lookOf(known[each.run]), thin: inBand.has(each.run) }));
    const means = banded.map((band) => ({ name: `mean of ${band.runs.length} seeds of ${known[band.runs[0]].name}`, x: band.x, y: band.mean, look: lookOf(known[band.runs[0]]) }));
    const target = index.runs.filter((run) => ids.includes(run.id)).map((run) => run.summary.metric && quantity.endsWith(`.${run.summary.metric}`) ? run.summary.target : null);
    const lines = new Set(target).size === 1 && target[0] ? [{ y: target[0], words: `target ${number(target[0])}` }] : [];
    chart.draw({ label: `${column(quantity)} ${AXES[axis][1]}`, xName: AXES[axis][0], xWords: AXES[axis][2], yWords: quantity.startsWith("bytes") ? bytes : number, log: Boolean(parameters.log), series: [...series, ...means], bands: banded.map((band) => ({ ...band, look: lookOf(known[band.runs[0]]) })), lines, nothing: ids.length ? "no run has such values yet" : "check a run below to draw it" });
  }

  return {
    element,
    async update(now) {
      parameters = now || parameters;
      index = await ask("index");
      const state = JSON.stringify([index, parameters]);
      if (state === told) return;
      told = state;
      under.textContent = `${index.runs.length} below ${index.root}`;
      fillChoice(x.select, index.axes.map((axis) => [axis, AXES[axis][1]]), parameters.x || "round");
      fillChoice(y.select, index.columns.map((path) => [path, column(path)]), parameters.y || usual(index.columns));
      log.checked = Boolean(parameters.log);
      seeds.checked = !parameters.lines;
      fill();
      fillDifferences();
      await drawCurves();
    },
  };
}
