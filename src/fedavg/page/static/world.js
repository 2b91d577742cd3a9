// A day of a simulated world: who is there at which hour, and what the rounds of the day came to.

import { lineChart, look, ticks } from "./chart.js";
import { bytes, card, choice, duration, facts, fillChoice, h, number, s } from "./dom.js";
import { resized, told } from "./picture.js";
import { ask, exported } from "./source.js";

const HOUR = 3600, HOURS = [0, 3, 6, 9, 12, 15, 18, 21, 24];

export function worldView(parameters, go) {
  const under = h("p", { class: "sub" });
  const which = choice("run", [], "", (id) => go("world", { run: id }));
  const day = choice("day", [], "", (value) => go("world", { run: chosen.id, day: value }));
  const there = lineChart(), groups = lineChart(), line = h("div", { class: "view" }), totals = h("div", { class: "view" });
  const thereCard = card("Who is there", there.element), groupCard = card("By group", groups.element);
  const element = h("div", {}, h("div", { class: "head" }, h("div", {}, h("h1", {}, "A day of the world"), under), h("div", { class: "row controls" }, which.element, day.element)), totals, thereCard, line, groupCard);
  let chosen = null, seen = "";

  return {
    element,
    async update(next) {
      parameters = next || parameters;
      const index = await ask("index");
      const worlds = index.runs.filter((run) => run.last["world.closed_s"] !== undefined);
      chosen = worlds.find((run) => run.id === parameters.run) || worlds[0];
      for (const part of [which.element, day.element, thereCard, groupCard]) part.hidden = !chosen;
      if (!chosen) { line.replaceChildren(h("p", { class: "empty" }, "No run here has a simulated clock. A plan with a world has one: fedavg run mnist-2nn --world diurnal")); totals.replaceChildren(); return; }
      fillChoice(which.select, worlds.map((run) => [run.id, run.name]), chosen.id);
      const answer = await ask(`run/${chosen.id}/world${parameters.day && !exported ? `?day=${encodeURIComponent(parameters.day)}` : ""}`);
      fillChoice(day.select, Array.from({ length: exported ? 1 : answer.days }, (_, i) => [String(i), String(i + 1)]), String(answer.day));
      const state = JSON.stringify([answer, parameters]);
      if (state === seen) return;
      seen = state;
      fill(answer);
    },
  };

  function fill(answer) {
    const v = answer.values, start = answer.day * 24 * HOUR;
    const hours = (values) => values.map((value) => (value - start) / HOUR);
    const x = hours(v.opened_s);
    under.textContent = `${chosen.name}, day ${answer.day + 1} of ${answer.days}, ${number(answer.in_all)} rounds${answer.in_all > answer.rounds.length ? `, ${answer.rounds.length} of them drawn` : ""}`;
    const curve = (name, key, colour) => ({ name, x, y: v[key], look: look(colour) });
    const most = lastHour(answer);
    const shared = { xName: "hour of the day (UTC)", xWords: (value) => `${number(Math.round(value * 100) / 100)}`, key: true, xTicks: most === 24 ? HOURS : null };
    there.draw({ ...shared, label: "Clients over the day", series: [curve("clients there", "there", 7), curve("asked", "asked", 0), curve("reported", "reported", 2), curve("late", "late", 4), curve("dropped", "dropped", 1)].filter((each) => each.y) });
    const names = [...new Set(Object.keys(v).filter((key) => key.startsWith("groups.")).map((key) => key.split(".")[1]))];
    groupCard.hidden = names.length < 2;
    groups.draw({ ...shared, label: "Clients there by group", series: names.slice(0, 8).map((name, i) => ({ name: `group ${name}: there`, x, y: v[`groups.${name}.0`], look: look(i) })) });
    totals.replaceChildren(card("All days together", facts([["simulated", duration(chosen.simulated_s)], ["devices at work", duration(answer.totals.spent_s)], ["of it in vain", duration(answer.totals.wasted_s), answer.totals.spent_s ? `${number(Math.round(1000 * answer.totals.wasted_s / answer.totals.spent_s) / 10)} %` : null], ["waited for clients", duration(answer.totals.waited_s)], ["up", bytes(chosen.bytes_up)], ["down", bytes(chosen.bytes_down)]])));
    line.replaceChildren(card("Rounds of the day", h("p", { class: "sub" }, "Each bar is a round from its opening to its close; the pale part before it is time spent waiting for clients."), timeline(answer)));
  }
}

const LANES = 12;

/** A world that ended within its first hours is drawn as far as it came. */
function lastHour(answer) {
  const last = Math.max(...answer.values.closed_s) / HOUR;
  return answer.days === 1 && last < 12 ? last : 24;
}

function timeline(answer) {
  const v = answer.values, start = answer.day * 24 * HOUR, height = LANES * 14 + 40;
  const plot = resized((element, width) => {
    const left = 8;
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `Timeline: ${answer.rounds.length} rounds over ${number(Math.round(lastHour(answer) * 100) / 100)} hours` });
    const most = lastHour(answer);
    const X = (second) => left + Math.max(0, Math.min(most, (second - start) / HOUR)) / most * (width - 2 * left);
    for (const hour of most === 24 ? HOURS : ticks(0, most, 6)) svg.append(s("line", { class: "grid", x1: X(start + hour * HOUR), x2: X(start + hour * HOUR), y1: 0, y2: height - 34 }), s("text", { x: X(start + hour * HOUR), y: height - 18, "text-anchor": "middle" }, number(hour)));
    answer.rounds.forEach((round, i) => {
      const y = (round % LANES) * 14, waited = X(v.opened_s[i]) - X(v.began_s[i]);
      if (waited > 0.3) svg.append(s("rect", { class: "mute", x: X(v.began_s[i]), y, width: waited, height: 11 }));
      svg.append(s("rect", { class: v.reported[i] < v.asked[i] ? "f1" : "f0", x: X(v.opened_s[i]), y, width: Math.max(1.2, X(v.closed_s[i]) - X(v.opened_s[i])), height: 11, rx: 1.5 }, s("title", {}, `round ${round}: ${v.reported[i]} of ${v.asked[i]} reported`)));
    });
    svg.append(s("text", { class: "strong", x: width / 2, y: height - 2, "text-anchor": "middle" }, "hour of the day (UTC)"));
    element.replaceChildren(svg);
  });
  const key = h("ul", { class: "key" }, h("li", {}, h("span", { class: "swatch b0" }), "all who were asked reported"), h("li", {}, h("span", { class: "swatch b1" }), "some were late or dropped out"));
  const heads = ["round", ...["opened (h)", "took", "there", "asked", "reported", "late", "dropped"].map((name) => ({ name, number: true }))];
  const rows = () => answer.rounds.map((round, i) => [String(round), number(Math.round((v.opened_s[i] - start) / 36) / 100), duration(v.closed_s[i] - v.opened_s[i]), ...["there", "asked", "reported", "late", "dropped"].map((name) => number(v[name]?.[i]))]);
  return h("div", {}, plot, key, told("Rounds of the day", heads, rows));
}
