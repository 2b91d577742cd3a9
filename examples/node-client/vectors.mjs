// Holds client.mjs against the test vectors beside docs/protocol.md: node vectors.mjs FOLDER

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Signer, float32, frameOf, keyOf, numbersOf, signedText, trained } from "./client.mjs";

const folder = process.argv[2];
const stored = (name) => JSON.parse(readFileSync(join(folder, `${name}.json`)));
const hex = (text) => Buffer.from(text, "hex");

const { secret_key_hex, public_key_base64, requests } = stored("signatures");
for (const { method, path, body, signed_text, headers } of requests) {
  const signer = new Signer(keyOf(hex(secret_key_hex)));
  signer.client = headers["FedAvg-Client"];
  signer.epoch = headers["FedAvg-Epoch"];
  signer.counter = BigInt(headers["FedAvg-Counter"]) - 1n;
  assert.equal(signer.publicKey, public_key_base64);
  assert.deepEqual(signer.headers(method, path, Buffer.from(body)), headers);
  const parts = ["Client", "Epoch", "Counter", "Body-SHA256"].map((name) => headers[`FedAvg-${name}`]);
  assert.equal(signedText(method, path, ...parts), signed_text);
}

const { expected, frames } = stored("frames");
const { plan, round, attempt, model, codec, numbers } = expected;
const header = { plan, round, attempt, model, codec, numbers, weight: 600, metrics: { train_loss: 0.25 } };
const made = frameOf(header, float32([1, -2]));
assert.deepEqual(made.subarray(-8), hex(frames[0].frame_hex).subarray(-8));
const written = hex(frames[0].frame_hex);
const inside = (frame) => JSON.parse(frame.subarray(9, 9 + frame.readUInt32LE(5)));
assert.deepEqual(inside(made), inside(written));

const { vector_hex, codecs } = stored("codecs");
const exact = codecs.find((each) => each.codec === "float32");
assert.deepEqual(numbersOf(hex(exact.frame_hex)), numbersOf(hex(vector_hex)));

const { examples, algorithms } = stored("algorithms");
const { shared, update, metrics, ...offer } = algorithms.fedavg;
const { weights, loss } = trained(shared, examples, offer);
weights.forEach((weight, place) => assert.ok(Math.abs(weight - shared[place] - update[place]) < 1e-6));
assert.ok(Math.abs(loss - metrics.train_loss) < 1e-6);
process.stdout.write("ok\n");
