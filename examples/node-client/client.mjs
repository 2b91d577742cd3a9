// A client of docs/protocol.md in plain JavaScript (Node 20 or newer, no packages). It fits a line y = w x + b on its own
// examples: a start for a client on a platform that has no Python.
//
//   node client.mjs URL STATE-FOLDER TASK examples.json [JOIN-TOKEN-FILE]
//
// examples.json is {"x": [...], "y": [...]}. Plain HTTP is for trying out on one machine.

import { createHash, createPrivateKey, createPublicKey, generateKeyPairSync, sign } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

export const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");
const sleep = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
const SIGN_AGAIN = ["stale-epoch", "replayed", "too-old"];

// Signing

export function signedText(method, path, client, epoch, counter, bodyDigest) {
  return ["fedavg-v1", method, path, client, epoch, String(counter), bodyDigest].join("\n");
}

export class Signer {
  constructor(key) {
    this.key = key;
    this.client = "enrol";
    this.epoch = "none-yet";
    this.counter = 0n;
  }

  get publicKey() {
    return createPublicKey(this.key).export({ format: "der", type: "spki" }).subarray(-32).toString("base64");
  }

  headers(method, path, body) {
    this.counter += 1n;
    const digest = sha256(body);
    const text = signedText(method, path, this.client, this.epoch, this.counter, digest);
    return {
      "FedAvg-Client": this.client,
      "FedAvg-Epoch": this.epoch,
      "FedAvg-Counter": String(this.counter),
      "FedAvg-Body-SHA256": digest,
      "FedAvg-Signature": sign(null, Buffer.from(text), this.key).toString("base64"),
    };
  }

  resync(epoch, highest) {
    this.counter = epoch && epoch !== this.epoch ? 0n : this.counter;
    if (highest > this.counter) this.counter = highest;
    this.epoch = epoch ?? this.epoch;
  }
}

export function keyOf(secret) {
  // PKCS 8 for Ed25519 is this and the 32 bytes.
  const der = Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), secret]);
  return createPrivateKey({ key: der, format: "der", type: "pkcs8" });
}

// The update frame

export function float32(numbers) {
  const bytes = Buffer.alloc(4 * numbers.length);
  numbers.forEach((number, place) => bytes.writeFloatLE(number, 4 * place));
  return bytes;
}

export function numbersOf(bytes) {
  return Array.from({ length: bytes.length / 4 }, (_, place) => bytes.readFloatLE(4 * place));
}

export function frameOf(header, payload) {
  const sealed = { ...header, payload_bytes: payload.length, payload_sha256: sha256(payload) };
  const text = Buffer.from(JSON.stringify(sealed));
  const prefix = Buffer.alloc(9);
  prefix.write("FAVG");
  prefix.writeUInt8(1, 4);
  prefix.writeUInt32LE(text.length, 5);
  return Buffer.concat([prefix, text, payload]);
}

// Local training: `epochs` epochs of SGD on the mean of (w x + b - y)^2, in batches, as the protocol says.

export function trained([w, b], { x, y }, { epochs, batch, lr }) {
  const f = Math.fround;
  const size = batch === null ? x.length : Math.min(batch, x.length);
  let loss = 0;
  for (let epoch = 0; epoch < epochs; epoch++) {
    const order = size === x.length ? x.keys() : shuffled(x.length);
    const places = [...order];
    loss = 0;
    for (let start = 0; start < places.length; start += size) {
      const chosen = places.slice(start, start + size);
      let [gw, gb, sum] = [0, 0, 0];
      for (const place of chosen) {
        const error = w * x[place] + b - y[place];
        sum += error * error;
        gw += (2 * error * x[place]) / chosen.length;
        gb += (2 * error) / chosen.length;
      }
      loss += sum;
      [w, b] = [f(w - lr * gw), f(b - lr * gb)];
    }
  }
  return { weights: [w, b], loss: loss / x.length };
}

function shuffled(n) {
  const places = [...Array(n).keys()];
  for (let i = n - 1; i > 0; i--) {
    const j = Math.floor(Math.random() * (i + 1));
    [places[i], places[j]] = [places[j], places[i]];
  }
  return places;
}

// A client

export class Client {
  constructor(url, folder, task, examples, token, onModel = () => {}) {
    Object.assign(this, { url, folder, task, examples, token, onModel });
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    const file = join(folder, "key.pem");
    if (!existsSync(file)) {
      const { privateKey } = generateKeyPairSync("ed25519");
      writeFileSync(file, privateKey.export({ format: "pem", type: "pkcs8" }), { mode: 0o600 });
    }
    this.signer = new Signer(createPrivateKey(readFileSync(file)));
    this.held = null;
    this.failures = 0;
  }

  async ask(method, path, body, type = "application/json") {
    for (let pause = 0.2; ; pause = Math.min(1.5 * pause, 30)) {
      let answer;
      try {
        const headers = { ...this.signer.headers(method, path, body), "Content-Type": type };
        const options = { method, headers, redirect: "error", body: method === "GET" ? undefined : body };
        answer = await fetch(this.url + path, options);
      } catch {
        await sleep(pause * (0.5 + Math.random()));
        continue;
      }
      const bytes = Buffer.from(await answer.arrayBuffer());
      if (answer.ok) return bytes;
      let problem = null;
      try {
        problem = JSON.parse(bytes);
      } catch {
        // not the server's: something in between
      }
      if (answer.status === 401 && SIGN_AGAIN.includes(problem?.error)) {
        this.signer.resync(problem.epoch, BigInt(answer.headers.get("FedAvg-Counter") ?? 0));
      } else if (answer.status === 429 || answer.status >= 500) {
        await sleep(Math.max(pause, Number(answer.headers.get("Retry-After") ?? 0)));
      } else {
        const reason = problem?.error ?? "blocked";
        throw Object.assign(new Error(`${answer.status} ${reason}: ${problem?.detail ?? ""}`), { reason });
      }
    }
  }

  async post(path, message) {
    return JSON.parse(await this.ask("POST", path, Buffer.from(JSON.stringify(message))));
  }

  async enrol() {
    const request = {
      token: this.token, key: this.signer.publicKey, examples: this.examples.x.length, name: "node", client: null,
      tasks: [this.task], protocol: 2,
    };
    this.signer.client = "enrol";
    const enrolled = await this.post("/v1/enrol", request);
    this.signer.client = String(enrolled.client);
    this.take(enrolled);
  }

  // The run and the plan that the client works by; what it holds is of the one before.
  take({ run, plan_digest }) {
    this.taken = run === null ? null : { run, plan_digest };
    this.planDigest = plan_digest;
    this.held = null;
  }

  async model(digest, numbers) {
    const answer = await fetch(`${this.url}/v1/models/${digest}`, { headers: { "Accept-Encoding": "identity" } });
    const bytes = Buffer.from(await answer.arrayBuffer());
    if (bytes.length !== 4 * numbers || sha256(bytes) !== digest) throw new Error("another model came");
    return numbersOf(bytes);
  }

  async work(offer) {
    const same = (key) => this.held?.[key] === offer[key];
    if (!["round", "attempt", "model"].every(same)) {
      const before = await this.model(offer.model, offer.numbers);
      const { weights, loss } = trained(before, this.examples, offer);
      const header = {
        plan: this.planDigest, round: offer.round, attempt: offer.attempt, model: offer.model, codec: "float32",
        numbers: 2, weight: this.examples.x.length, metrics: { train_loss: loss },
      };
      const change = weights.map((weight, place) => Math.fround(weight - before[place]));
      this.held = { round: offer.round, attempt: offer.attempt, model: offer.model, frame: frameOf(header, float32(change)) };
    }
    const path = `/v1/rounds/${offer.round}/${offer.attempt}/update`;
    await this.ask("PUT", path, this.held.frame, "application/octet-stream");
  }

  // Until the server has no more runs. `onModel` is given the numbers of each run's final model.
  async run() {
    await this.enrol();
    for (;;) {
      const { frame, ...holding } = this.held ?? {};
      const answer = await this.post("/v1/poll", {
        eligible: { charging: true, unmetered: true, idle: true }, examples: this.examples.x.length,
        holding: this.held && holding, run: this.taken, wait_s: 10,
      });
      if (answer.counted !== null && answer.counted !== undefined) this.held = null;
      if (answer.type === "plan") this.take(answer);
      if (answer.type === "done") {
        this.onModel(await this.model(answer.model, 2));
        if (!answer.more) return;
        this.take({ run: null, plan_digest: null }); // it waits for another run
      }
      if (answer.type === "wait") await sleep(answer.retry_after_s);
      if (answer.type !== "work") continue;
      try {
        await this.work(answer);
        this.failures = 0;
      } catch (error) {
        const { round, attempt } = answer;
        const reason = error.reason === "blocked" ? "blocked" : error.reason ? "update-refused" : "training-failed";
        const report = { round, attempt, kind: "failed", reason, blames: null, detail: error.message.slice(0, 400) };
        await this.post("/v1/report", report).catch(() => {});
        await sleep(Math.min(300, 2 ** this.failures++) * (0.5 + Math.random()));
      }
    }
  }
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  const [url, folder, task, data, tokenFile] = process.argv.slice(2);
  const token = tokenFile ? readFileSync(tokenFile, "utf8").trim() : "";
  const show = (numbers) => process.stdout.write(`${JSON.stringify(numbers)}\n`);
  await new Client(url.replace(/\/$/, ""), folder, task, JSON.parse(readFileSync(data)), token, show).run();
}
