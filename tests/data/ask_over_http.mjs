// Asks a collector as any program would that has nothing but fetch and its OpenAPI document.
//
//   node ask_over_http.mjs http://HOST:PORT TOKEN < questions.json
//
// A question is {operation, fields}: an operationId and the request's fields. Answers come as one JSON list of
// {status, type, text}; of a stream of events only the first one, of bytes their SHA-256.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

const [base, token] = process.argv.slice(2);
const headers = { authorization: `Bearer ${token}` };
const description = await (await fetch(`${base}/v1/openapi.json`)).json();

const operations = new Map();
for (const [path, verbs] of Object.entries(description.paths)) {
  for (const [verb, operation] of Object.entries(verbs)) {
    operations.set(operation.operationId, { path, verb, ...operation });
  }
}

async function ask({ operation, fields }) {
  const { path, verb, parameters = [], requestBody } = operations.get(operation);
  if (requestBody) {
    const body = JSON.stringify(fields);
    return fetch(base + path, { method: verb, headers: { ...headers, "content-type": "application/json" }, body });
  }
  let where = path;
  const query = new URLSearchParams();
  for (const { name, in: place } of parameters) {
    const value = fields[name];
    if (place === "path") where = where.replace(`{${name}}`, encodeURIComponent(value));
    else if (value !== undefined) for (const one of [value].flat()) query.append(name, one);
  }
  return fetch(`${base}${where}?${query}`, { headers });
}

async function firstEvent(body) {
  let text = "";
  for await (const piece of body.pipeThrough(new TextDecoderStream())) {
    text += piece;
    if (text.includes("\n\n")) return text.slice(0, text.indexOf("\n\n"));
  }
  return text;
}

const answers = [];
for (const question of JSON.parse(readFileSync(0, "utf8"))) {
  const answer = await ask(question);
  const type = answer.headers.get("content-type");
  let text;
  if (type.startsWith("text/event-stream")) text = await firstEvent(answer.body);
  else if (type.includes("json")) text = await answer.text();
  else text = createHash("sha256").update(new Uint8Array(await answer.arrayBuffer())).digest("hex");
  answers.push({ status: answer.status, type, text });
}
console.log(JSON.stringify(answers));
