// One round: who was asked and what became of them, what it cost, what it cost in privacy.

import { bytes, card, choice, duration, facts, fillChoice, h, number, table } from "./dom.js";
import { against, bars, dots, shareBar } from "./picture.js";
import { ask } from "./source.js";

/** Runs that have rounds, as choices; and the one that is meant. */
export function runChoice(runs, parameters) {
  const whole = runs.filter((run) => run.rounds);
  const run = whole.find((each) => each.id === parameters.run) || [...whole].sort((a, b) => b.changed - a.changed)[0];
  return { run, options: whole.map((each) => [each.id, each.name]) };
}

export function roundView(parameters, go) {
  const title = h("h1", {}, "Round"), under = h("p", { class: "sub" });
  const which = choice("run", [], "", (id) => go("round", { run: id }));
  const exact = h("input", { type: "number", min: 1, "aria-label": "Round number", onchange: () => move(Number(exact.value)) });
  const slide = h("input", { type: "range", min: 1, "aria-label": "Round", oninput: () => move(Number(slide.value)) });
  const back = h("button", { type: "button", onclick: () => step(-1) }, "‹ Earlier"), on = h("button", { type: "button", onclick: () => step(1) }, "Later ›");
  const newest = h("button", { type: "button", onclick: () => go("round", { run: chosen.id }) }, "Newest");
  const body = h("div", { class: "view" });
  const controls = h("section", { class: "card controls", "aria-label": "Which round" }, h("div", { class: "row" }, which.element, h("label", {}, "round", exact), back, on, newest), slide);
  const element = h("div", {}, h("div", { class: "head" }, h("div", {}, title, under)), controls, body);
  let chosen = null, now = 1, told = "", known = null;

  /** An exported file of a long run holds some of its rounds. */
  function nearestKept(index, number) {
    const kept = index.kept?.[chosen.id];
    if (!kept || kept.includes(number)) return number;
    return kept.reduce((best, each) => Math.abs(each - number) < Math.abs(best - number) ? each : best);
  }

  function step(by) {
    const kept = known?.kept?.[chosen.id];
    move(kept ? kept[kept.indexOf(now) + by] ?? now : now + by);
  }

  function move(number) { go("round", { run: chosen.id, n: String(Math.max(1, Math.min(chosen.rounds, number || 1))) }); }

  return {
    element,
    async update(next) {
      parameters = next || parameters;
      const index = await ask("index");
      const { run, options } = runChoice(index.runs, parameters);
      chosen = run;
      known = index;
      controls.hidden = !run;
      if (!run) { body.replaceChildren(h("p", { class: "empty" }, "No run has a round on record yet.")); return; }
      now = nearestKept(index, Math.min(Number(parameters.n) || run.rounds, run.rounds));
      fillChoice(which.select, options, run.id);
      for (const input of [exact, slide]) { input.max = run.rounds; if (input !== document.activeElement || input === slide) input.value = now; }
      back.disabled = now <= 1;
      on.disabled = now >= run.rounds;
      newest.disabled = !parameters.n;
      title.textContent = `Round ${number(now)}`;
      under.textContent = `of ${number(run.rounds)} in ${run.name}${parameters.n ? "" : "; follows the newest"}`;
      const answer = await ask(`run/${run.id}/round/${now}`);
      const state = JSON.stringify(answer);
      if (state === told) return;
      told = state;
      body.replaceChildren(...sections(answer));
    },
  };
}

function sections(answer) {
  const { row } = answer, cohort = row.cohort;
  const judged = Object.entries(row.test || {}).map(([name, value]) => [name, number(value), "test set"]);
  const onClients = Object.entries(row.on_clients?.metrics || {}).map(([name, value]) => [name, number(value), `on ${number(row.on_clients.clients)} clients`]);
  const own = Object.entries(row.metrics || {}).map(([name, value]) => [name, number(value), "of the algorithm"]);
  const found = [
    card("What came of it", facts([...judged, ...onClients, ["training loss", row.train_loss === null ? null : number(row.train_loss), "mean over the cohort"], ...own, ["learning rate", number(row.lr)], ["examples", number(row.examples), "weight of the mean"]]),
      !judged.length && !onClients.length ? h("p", { class: "sub" }, "The model was not judged after this round.") : null),
    card("Cost", facts([["bytes up", bytes(row.bytes_up), answer.codec ? `codec ${answer.codec}` : null], ["bytes down", bytes(row.bytes_down), answer.downlink ? `codec ${answer.downlink}` : null],
      ["up per client", row.clients ? bytes(row.bytes_up / row.clients) : null, "mean"], ["training", duration(row.seconds), "real time"], ["evaluation", duration(row.eval_seconds), "real time"], ["simulated", duration(row.simulated_s)]])),
    h("div", { class: "pair" }, attendance(answer), updates(answer)),
  ];
  const more = [budget(answer), survivors(answer), staleness(cohort)].filter(Boolean);
  if (more.length) found.push(h("div", { class: "pair" }, more));
  return found;
}

function attendance({ row, private: hidden }) {
  const cohort = row.cohort;
  if (!cohort) return card("Who took part", facts([["clients", number(row.clients), "in the sum"]]), h("p", { class: "sub" }, "This run was recorded without more."));
  const missing = Object.entries(cohort.missing);
  const items = [{ name: "reported", value: row.clients, colour: 2 }, ...missing.map(([reason, value], i) => ({ name: reason, value, colour: [1, 4, 3, 7, 6][i % 5] }))];
  const who = cohort.who;
  const list = who ? h("details", {}, h("summary", {}, "Client by client"), table("Clients of this round", ["client", "what became of it", { name: "norm", number: true }, { name: "cosine", number: true }],
    who.client.map((k, i) => [String(k), who.outcome[i], number(who.norm[i]), number(who.cosine[i])]))) : h("p", { class: "sub" }, hidden ? "The plan keeps single clients from view: only counts are recorded." : "Single clients are not recorded here: updates came without names, or the cohort was larger than 1,000.");
  return card("Who took part", facts([["asked", number(cohort.asked)], ["reported", number(row.clients)], ["missing", number(cohort.asked - row.clients)]]), shareBar("Clients of this round", items), list);
}

function updates({ row, private: hidden }) {
  const who = row.cohort?.who;
  const points = who ? who.client.map((k, i) => ({ name: `client ${k}`, x: who.norm[i], y: who.cosine[i] })).filter((point) => point.x !== null && point.y !== null) : [];
  if (!points.length) return card("Updates against their mean", h("p", { class: "notice calm" }, hidden ? "Not shown: under differential privacy or secure aggregation no single update is seen." : "Nothing is recorded of single updates in this round."));
  return card("Updates against their mean", h("p", { class: "sub" }, "Length of each update, and the cosine of its angle to the mean. Cosines are estimates, within about 0.03."),
    dots({ label: "Updates: norm and cosine to the mean", xName: "L2 norm of the update", yName: "cosine to the mean", points }));
}

function budget({ row, budget: limit }) {
  if (row.epsilon === undefined || row.epsilon === null) return null;
  const ledger = row.ledger || {};
  const words = limit ? `epsilon ${number(row.epsilon)} of ${number(limit)} is spent` : `epsilon ${number(row.epsilon)} is spent; the plan has no budget`;
  return card("Privacy", against("Epsilon spent up to this round", row.epsilon, limit || row.epsilon, words, !limit || row.epsilon <= limit), facts([["delta", ledger.delta === undefined ? null : number(ledger.delta)]]));
}

function survivors({ row, secagg }) {
  const cohort = row.cohort;
  if (!cohort || cohort.survivors === undefined) return null;
  const enough = cohort.threshold === null || cohort.survivors >= cohort.threshold;
  const needed = cohort.threshold === null ? "" : `; at least ${cohort.threshold} are needed to open the sum`;
  return card("Secure aggregation", h("p", { class: "sub" }, secagg), against("Survivors", cohort.survivors, cohort.asked, `${cohort.survivors} of ${cohort.asked} clients are in the sum${needed}`, enough),
    row.saturated ? h("p", { class: "notice" }, `${number(row.saturated)} numbers were cut to the clip range.`) : null);
}

function staleness(cohort) {
  const found = Object.entries(cohort?.staleness || {});
  if (!found.length) return null;
  return card("Staleness", h("p", { class: "sub" }, "How many rounds ago the model was new that an update was made from."), bars({ label: "Updates by staleness", xName: "rounds ago", yName: "updates", names: found.map(([age]) => age), values: found.map(([, count]) => count), colour: 6 }));
}

