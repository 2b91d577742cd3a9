// The clients of a run: what they hold, how the model does on them, how often they take part.

import { lineChart, look } from "./chart.js";
import { card, choice, facts, fillChoice, h, number, table } from "./dom.js";
import { bars, labelMap } from "./picture.js";
import { runChoice } from "./round.js";
import { ask, Missing } from "./source.js";

export function clientsView(parameters, go) {
  const title = h("h1", {}, "Clients"), under = h("p", { class: "sub" });
  const which = choice("run", [], "", (id) => go("clients", { run: id }));
  const spread = h("div"), part = h("div"), held = h("div");
  const metric = choice("metric", [], "", (name) => go("clients", { run: chosen.id, metric: name }));
  const chart = lineChart();
  const spreadCard = card("Over clients", h("p", { class: "sub" }, "The band holds the middle four fifths of the clients that judged the model."), h("div", { class: "row controls" }, metric.element), chart.element, spread);
  const element = h("div", {}, h("div", { class: "head" }, h("div", {}, title, under), which.element), held, spreadCard, part);
  let chosen = null, told = "", drawn = "";

  async function partition(run) {
    if (drawn === run.id) return;
    drawn = run.id;
    held.replaceChildren(card("What clients hold", h("p", { class: "sub" }, "The data is being read …")));
    let answer;
    try { answer = await ask(`run/${run.id}/partition`); } catch (error) { if (!(error instanceof Missing)) throw error; answer = { missing: error.message }; }
    if (drawn !== run.id) return;
    held.replaceChildren(answer.missing ? card("What clients hold", h("p", { class: "notice calm" }, answer.missing)) : pictured(answer));
  }

  return {
    element,
    async update(next) {
      parameters = next || parameters;
      const index = await ask("index");
      const { run, options } = runChoice(index.runs, parameters);
      chosen = run;
      which.element.hidden = spreadCard.hidden = !run;
      if (!run) { held.replaceChildren(h("p", { class: "empty" }, "No run has a round on record yet.")); return; }
      fillChoice(which.select, options, run.id);
      under.textContent = run.name;
      const answer = await ask(`run/${run.id}/clients`);
      const state = JSON.stringify([answer, parameters]);
      if (state !== told) { told = state; await fill(answer); }
      void partition(run);
    },
  };

  async function fill(answer) {
    const names = answer.metrics;
    const name = names.includes(parameters.metric) ? parameters.metric : names.find((each) => each === "accuracy") || names[0];
    spreadCard.hidden = !names.length;
    if (names.length) {
      fillChoice(metric.select, names.map((each) => [each, each]), name);
      const curves = answer.spread[name];
      const line = (key, words, colour, thin) => curves[key] ? { name: words, ...curves[key], look: look(colour), thin } : null;
      const ends = curves.p10 && curves.p90 && curves.p10.x.length === curves.p90.x.length ? [{ name: "p10 to p90", x: curves.p10.x, low: curves.p10.y, high: curves.p90.y, look: look(0) }] : [];
      chart.draw({ label: `${name} over clients by round`, xName: "round", key: true, series: [line("p50", "median client", 0), line("worst_decile", "mean of the worst tenth", 1), line("p10", "10th percentile", 0, true), line("p90", "90th percentile", 0, true)].filter(Boolean), bands: ends });
      const worst = answer.worst?.[name];
      spread.replaceChildren(worst ? h("div", { class: "stack narrow" }, h("h2", {}, `Who fares worst after round ${number(answer.judged)}`), table("Clients that fare worst", ["client", { name, number: true }], worst.client.map((k, i) => [String(k), number(worst.value[i])]))) : "");
    }
    part.replaceChildren(participation(answer));
  }
}

function pictured(answer) {
  const sizes = answer.sizes;
  const found = [facts([["clients", number(answer.clients)], ["examples", number(answer.train_examples), "to train"], ["examples per client", number(answer.client_size.median), `${number(answer.client_size.min)} to ${number(answer.client_size.max)}`],
    answer.labels_per_client ? ["labels per client", number(answer.labels_per_client.median), `${number(answer.labels_per_client.min)} to ${number(answer.labels_per_client.max)}`] : null])];
  const some = answer.shown.length < answer.clients ? `, ${number(answer.shown.length)} of ${number(answer.clients)} clients` : "";
  found.push(h("h2", {}, `Examples of each client${some}`), bars({ label: `Examples of each client${some}`, xName: "client", yName: "examples", names: answer.shown.map(String), values: sizes }));
  if (answer.labels) found.push(h("h2", {}, `Labels of each client${some}`), h("p", { class: "sub" }, "The darker, the larger the share of the client's examples."), labelMap({ label: `Labels of each client${some}`, clients: answer.shown, labels: answer.labels.map(String), counts: answer.counts }));
  return card("What clients hold", ...found);
}

function participation(answer) {
  const part = answer.participation;
  if (!part) return card("Participation", h("p", { class: "notice calm" }, answer.private ? "Not shown: the plan keeps single clients from view." : "Who took part is not recorded in this run."));
  const counts = [...part.reported].sort((a, b) => a - b);
  return card("Participation", facts([["clients that took part", number(part.distinct)], ["rounds per client", number(counts[Math.floor(counts.length / 2)]), `${number(counts[0])} to ${number(counts.at(-1))}, of those that did`]]),
    bars({ label: "Rounds that each client reported in", xName: "client", yName: "rounds", names: part.client.map(String), values: part.reported, colour: 2 }));
}

