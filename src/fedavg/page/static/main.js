// Which view is shown, by the address after '#'; views are asked to update when something is new.

import { h } from "./dom.js";
import { fleetView } from "./fleet.js";
import { clientsView } from "./clients.js";
import { roundView } from "./round.js";
import { runsView } from "./runs.js";
import { ask, exported, follow, Missing } from "./source.js";
import { worldView } from "./world.js";

const RUNS = { runs: ["Runs", runsView], round: ["Round", roundView], clients: ["Clients", clientsView], world: ["World", worldView] };
const FLEET = { fleet: ["Fleet", fleetView] };
const main = document.getElementById("main"), link = document.getElementById("link"), list = document.getElementById("views");
let shown = null, current = null, busy = false, again = false;

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const name = path in VIEWS ? path : first();
  return { name, parameters: Object.fromEntries(new URLSearchParams(query || "")) };
}

function first() { return Object.keys(VIEWS)[0]; }

function go(name, parameters) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([key, value]) => value !== "" || key === "runs")).toString();
  const address = `#/${name}${query ? `?${query}` : ""}`;
  if (location.hash === address) update();
  else history.pushState(null, "", address);
  show(false);
}

/** The run that is looked at stays the same from view to view. */
function kept(key) {
  const run = place().parameters.run;
  return run && key !== "runs" ? `?run=${encodeURIComponent(run)}` : "";
}

function tabs(name) {
  list.replaceChildren(...Object.entries(VIEWS).map(([key, [words]]) => h("li", {}, h("a", { href: `#/${key}${kept(key)}`, "aria-current": key === name ? "page" : null }, words))));
}

async function show(moved) {
  const { name, parameters } = place();
  if (current?.name !== name) {
    current = { name };
    shown = VIEWS[name][1](parameters, go);
    main.replaceChildren(...shown.element.childNodes);
    document.title = `${VIEWS[name][0]} – fedavg`;
    if (moved) { main.focus(); window.scrollTo(0, 0); }
  }
  tabs(name);
  await update(parameters);
}

async function update(parameters) {
  if (busy) { again = true; return; }
  busy = true;
  try {
    do {
      again = false;
      await shown.update(parameters || place().parameters);
      parameters = undefined;
    } while (again);
    document.getElementById("problem")?.remove();
  } catch (error) {
    if (!(error instanceof Missing) && !(error instanceof TypeError && !exported)) throw error;
    trouble(error instanceof Missing ? error.message : "The page's server does not answer. Is 'fedavg page' still running?");
  } finally { busy = false; }
  main.dataset.ready = String(Number(main.dataset.ready || 0) + 1);
}

function trouble(words) {
  const box = document.getElementById("problem") || h("p", { id: "problem", class: "notice", role: "alert" });
  box.textContent = words;
  main.prepend(box);
}

const LINKED = { live: "live", lost: "no connection", file: "exported file" };

function linked(state) {
  link.className = `link ${state}`;
  link.textContent = LINKED[state];
}

window.addEventListener("hashchange", () => show(true));
window.addEventListener("popstate", () => show(false));
const shows = await ask("index");
const VIEWS = { ...(shows.library ? RUNS : {}), ...(shows.fleet ? FLEET : {}) };
await show(false);
follow(() => update(), linked);
