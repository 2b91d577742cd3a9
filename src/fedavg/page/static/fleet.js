// A live fleet: who is there, the round under way, what was refused and why, how fast it goes.

import { lineChart, look } from "./chart.js";
import { card, duration, facts, h, number, table } from "./dom.js";
import { against, shareBar } from "./picture.js";
import { ask } from "./source.js";

export function fleetView() {
  const under = h("p", { class: "sub" }), state = h("div", { class: "view" }), chart = lineChart(), more = h("div", { class: "view" }), several = h("div", { class: "view" });
  const history = card("The last hour", chart.element);
  const element = h("div", {}, h("div", { class: "head" }, h("div", {}, h("h1", {}, "Fleet"), under)), state, several, history, more);
  let told = "", heard = "";
  return {
    element,
    async update() {
      const answer = await ask("fleet");
      under.textContent = `${answer.url}${answer.operator ? ", seen by its operator" : ""}`;
      history.hidden = !answer.moments.length;
      if (answer.problem) { state.replaceChildren(h("p", { class: "notice", role: "alert" }, answer.problem)); several.replaceChildren(); told = heard = ""; return; }
      draw(chart, answer.moments);
      const { replicas: servers, ...status } = answer.status, words = JSON.stringify(servers);
      if (words !== heard) several.replaceChildren(...replicas(servers || []));
      heard = words;
      const shown = JSON.stringify([status, answer.clients, answer.pace, (servers || []).length]);
      if (shown === told) return;
      told = shown;
      state.replaceChildren(...now(answer));
      more.replaceChildren(...reasons(answer), devices(answer));
    },
  };
}

function draw(chart, moments) {
  const start = moments.at(-1).at;
  const x = moments.map((each) => (each.at - start) / 60);
  const line = (name, key, colour) => ({ name, x, y: moments.map((each) => each[key]), look: look(colour) });
  chart.draw({ label: "Devices over the last hour", xName: "minutes ago", xWords: (value) => number(Math.abs(Math.round(value * 10) / 10)), key: true,
    series: [line("devices there", "present", 0), line("at work", "at_work", 1), line("rounds committed", "committed", 2)] });
}

function now({ status, pace }) {
  const round = status.round;
  const found = [card("Now", facts([["rounds committed", number(status.committed), status.done ? "the run is over" : null], ["rounds per hour", pace === null ? "–" : number(Math.round(pace * 10) / 10), pace === null ? "no round has ended yet" : "while this page watches"],
    ["devices there", number(status.present), "and eligible"], ["enrolled", number(status.clients)], ["resting", number(status.resting), "not invited for a while"], ["revoked", number(status.revoked)], status.replicas ? ["replicas", number(status.replicas.length)] : null]))];
  if (round) {
    const waiting = Math.max(0, round.invited - round.accepted - round.failed);
    found.push(card(`Round ${number(round.round)}: ${round.phase}`, h("p", { class: "sub" }, `attempt ${number(round.attempt + 1)}${round.phase === "collecting" ? `, ${duration(round.seconds_left)} left` : ""}`),
      against("Updates", round.accepted, round.goal || 1, `${number(round.accepted)} of ${number(round.goal)} wanted updates are in the sum`, true),
      shareBar("Invited devices", [{ name: "reported", value: round.accepted, colour: 2 }, { name: "at work", value: waiting, colour: 0 }, { name: "failed or declined", value: round.failed, colour: 1 }])));
  }
  return found;
}

function replicas(servers) {
  const rows = servers.map((each) => [each.url || each.name, each.leads ? "leads" : "follows", `${number(Math.round(each.heard_s_ago))} s ago`, number(each.updates_accepted), number(each.held_polls)]);
  return rows.length ? [card("Replicas", table("Replicas", [servers[0].url ? "address" : "name", "part", "last heard of", { name: "updates taken", number: true }, { name: "polls held", number: true }], rows))] : [];
}

function reasons({ status, operator }) {
  const list = (title, counts, none) => {
    const rows = Object.entries(counts || {}).sort((a, b) => b[1] - a[1]).map(([reason, count]) => [reason, number(count)]);
    return card(title, rows.length ? table(title, ["reason", { name: "count", number: true }], rows) : h("p", { class: "sub" }, none));
  };
  return [h("div", { class: "pair" }, list("Updates refused", status.updates_refused, `None; ${number(status.updates_accepted)} were accepted.`), list("Devices report", status.reports, "No device said why it did not take part."), operator ? list("Requests refused", status.requests_refused, "None.") : null)];
}

function devices({ clients, enrolled, operator }) {
  if (!operator) return h("p", { class: "notice calm" }, "With --admin-token-file the page also lists devices and refused requests.");
  const rows = clients.map((row) => [String(row.client), row.name || "–", row.revoked ? "revoked" : row.approved ? "enrolled" : "waits for approval", number(row.examples), new Date(row.enrolled * 1000).toISOString().slice(0, 16).replace("T", " ")]);
  return card(`Devices${enrolled > clients.length ? `: the first ${number(clients.length)} of ${number(enrolled)}` : ""}`, table("Devices", ["client", "name", "state", { name: "examples", number: true }, "enrolled (UTC)"], rows));
}
