// Where answers come from: the server that sent this page, or, in an exported file, the file itself.

const embedded = document.getElementById("answers");
const answers = embedded ? JSON.parse(embedded.textContent) : null;

export const exported = answers !== null;

export class Missing extends Error {}

export async function ask(path) {
  if (exported) {
    if (!(path in answers)) throw new Missing("This is not part of the exported file.");
    return answers[path];
  }
  const response = await fetch(`api/${path}`);
  const told = response.headers.get("content-type")?.startsWith("application/json");
  if (!told) throw new Missing(`The page's server failed with ${response.status}; what it wrote to its terminal says why.`);
  const answer = await response.json();
  if (!response.ok) throw new Missing(answer.error);
  return answer;
}

/** Calls `changed` when something is new, and `linked` with "live" or "lost". */
export function follow(changed, linked) {
  if (exported) { linked("file"); return; }
  const events = new EventSource("events");
  events.onopen = () => linked("live");
  events.onerror = () => linked("lost");
  events.onmessage = () => changed();
}
