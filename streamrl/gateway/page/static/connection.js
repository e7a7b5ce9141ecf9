// The only way to the gateway: one question, or the stream of what happens. The stream comes back by itself, and ends when
// the token is refused: then somebody has to give another one.

import { Events } from "./sse.js";
import { token } from "./session.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 5000;
// The gateway says something every ten seconds at least.
const SILENCE_MS = 25000;

/** What the gateway refused: `status` of HTTP, `code` for programs, `message` for people. */
export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }

  get ofToken() {
    return this.status === 401 || this.status === 403;
  }
}

/** Ask, and give the JSON that was answered. With a body it is a POST. Throws Refused, and TypeError for no connection. */
export async function ask(path, body) {
  return (await request(path, body)).json();
}

async function request(path, body, signal) {
  const given = token() ?? "";
  // No header can carry other letters, and no token has any.
  if (/[^\x21-\x7e]/.test(given)) throw new Refused(401, "invalid_api_key", "not a token of this run");
  const headers = { authorization: `Bearer ${given}` };
  const asked = { headers, signal, cache: "no-store", credentials: "omit", redirect: "error" };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    Object.assign(asked, { method: "POST", body: JSON.stringify(body) });
  }
  // Beside the page: a proxy may have put a prefix before all paths.
  const response = await fetch(new URL(path.slice(1), document.baseURI), asked);
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  try {
    const { error } = await response.json();
    return new Refused(response.status, error.code, error.message);
  } catch {
    return new Refused(response.status, "unknown", `the gateway answered with status ${response.status}`);
  }
}

/**
 * The stream of events, until the token is refused.
 *
 * opened(): it has just come up. took(event): each event. lost(since): it is down, since this time in ms.
 */
export class Stream {
  #told;
  #heard = Date.now();
  #connected = new AbortController();
  #stopped = false;

  constructor(told) {
    this.#told = told;
  }

  /** Throws Refused when the token is not taken. */
  async run() {
    for (let wait = FIRST_WAIT_MS; !this.#stopped; wait = Math.min(2 * wait, LONGEST_WAIT_MS)) {
      const before = this.#heard;
      try {
        await this.#once();
      } catch (error) {
        if (error instanceof Refused && error.ofToken) throw error;
      }
      if (this.#stopped) return;
      if (this.#heard !== before) wait = FIRST_WAIT_MS;
      this.#told.lost(this.#heard);
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  /** Follow no more, and tell no more. */
  stop() {
    this.#stopped = true;
    this.drop();
  }

  /** Give up the connection; the next one follows as after any that is lost. */
  drop() {
    this.#connected.abort();
  }

  /** One connection, to its end. */
  async #once() {
    const connected = new AbortController();
    this.#connected = connected;
    const asked = Date.now();
    const silence = setInterval(() => Date.now() - Math.max(asked, this.#heard) > SILENCE_MS && connected.abort(), 1000);
    try {
      const response = await request("/api/events", undefined, connected.signal);
      this.#heard = Date.now();
      this.#told.opened();
      await this.#read(response.body.pipeThrough(new TextDecoderStream()).getReader());
    } finally {
      clearInterval(silence);
    }
  }

  async #read(reader) {
    const events = new Events();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.#heard = Date.now();
      for (const event of events.feed(value)) this.#told.took(event);
    }
  }
}
