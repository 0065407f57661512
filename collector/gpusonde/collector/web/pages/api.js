// Asks the collector. A token stays in this tab's session storage: never in an address, never sent to anybody else.

const KEY = "gpusonde-token";
const AGAIN_MS = [1000, 2000, 4000, 8000];
// What a header can carry, and the collector reads.
const TOKEN = /^[\x21-\x7e]{1,1000}$/;
const BUSY = [429, 503];
const MOST_TRIES = 4;

export class Problem extends Error {
  constructor(document) {
    super(document.detail || document.title || "no answer");
    this.status = document.status || 0;
    this.code = document.code || "";
  }
}

export class Api {
  // askToken(why) resolves to a token that a person has typed.
  constructor(askToken) {
    this.askToken = askToken;
    this.asking = null;
  }

  async ask(why) {
    for (let reason = why; ; reason = "A token is of ASCII letters, digits and signs, without blanks. Type it again.") {
      const token = await this.askToken(reason);
      if (TOKEN.test(token)) return token;
    }
  }

  async open(path, signal, body = undefined) {
    // One that no header can carry would have every question fail before it is sent.
    if (!TOKEN.test(sessionStorage.getItem(KEY) ?? "")) sessionStorage.removeItem(KEY);
    for (let tries = 1; ; tries++) {
      const token = sessionStorage.getItem(KEY);
      const headers = token ? { Authorization: `Bearer ${token}` } : {};
      if (body) headers["Content-Type"] = "application/json";
      let answer;
      try {
        answer = await fetch(path, { method: body ? "POST" : "GET", body, headers, signal, cache: "no-store", credentials: "omit" });
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new Problem({ detail: "the collector does not answer" });
      }
      if (answer.ok) return answer;
      const problem = new Problem(await answer.json().catch(() => ({ status: answer.status, detail: answer.statusText })));
      if (BUSY.includes(answer.status) && tries < MOST_TRIES) {
        await new Promise((resolve) => setTimeout(resolve, 1000 * (Number(answer.headers.get("Retry-After")) || 1)));
        continue;
      }
      if (answer.status !== 401 && !(answer.status === 403 && token)) throw problem;
      // One question, however many wait for its answer; another token may have come meanwhile.
      if (sessionStorage.getItem(KEY) === token) {
        this.asking ??= this.ask(problem.message).finally(() => { this.asking = null; });
        sessionStorage.setItem(KEY, await this.asking);
      }
    }
  }

  async get(path, fields = {}, signal = undefined) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(fields)) {
      for (const one of Array.isArray(value) ? value : [value]) {
        if (one !== undefined && one !== "") query.append(name, one);
      }
    }
    const answer = await this.open(query.size ? `${path}?${query}` : path, signal);
    return answer.json();
  }

  async post(path, document, signal = undefined) {
    return (await this.open(path, signal, JSON.stringify(document))).json();
  }

  hasToken() {
    return sessionStorage.getItem(KEY) !== null;
  }

  // Calls onChange with every change and onLink with "here", "waiting" or "gone"; goes on until the page is closed.
  async watch(onChange, onLink) {
    for (let failures = 0; ; ) {
      let link = "gone";
      try {
        const answer = await this.open("/v1/watch");
        for await (const [name, document] of events(answer.body)) {
          if (name === "problem") throw new Problem(document);
          failures = 0;
          onLink(name === "waiting" ? "waiting" : "here");
          if (name === "change") onChange(document);
        }
      } catch (error) {
        console.debug("watch", error.message);
        if (error.status === 503) link = "waiting";
      }
      onLink(link);
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS[Math.min(failures++, AGAIN_MS.length - 1)]));
    }
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let name = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) yield [name, JSON.parse(line.slice(6))];
    }
  }
}
