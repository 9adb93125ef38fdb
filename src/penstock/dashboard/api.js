// The server: logging in, asking, and following what happens.
//
// The login is kept for this tab alone and sent with each request.  `credentials: "omit"` keeps the browser from
// remembering one by itself, which a page of another site could then use.

import { PATHS } from "./paths.js";

const KEPT = "penstock-login";

let login = sessionStorage.getItem(KEPT);
let refused = () => {};

export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

export const loggedIn = () => login !== null;

export function onRefused(callback) {
  refused = callback;
}

export async function logIn(user, password) {
  const bytes = new TextEncoder().encode(`${user}:${password}`);
  const before = login;
  login = `Basic ${btoa(String.fromCharCode(...bytes))}`;
  try {
    const who = await ask("whoami");
    sessionStorage.setItem(KEPT, login);
    return who;
  } catch (error) {
    login = before;
    throw error;
  }
}

export function logOut() {
  login = null;
  sessionStorage.removeItem(KEPT);
}

function address(name, names, query) {
  const [method, pattern] = PATHS[name].split(" ");
  const path = pattern.replace(/\{(\w+)\}/g, (_, one) => encodeURIComponent(names[one]));
  const pairs = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") pairs.append(key, value);
  }
  const text = pairs.toString();
  return [method, text ? `${path}?${text}` : path];
}

async function send(name, { names = {}, query = {}, body, headers = {}, signal } = {}) {
  const [method, url] = address(name, names, query);
  const sent = { authorization: login, ...headers };
  if (body !== undefined) sent["content-type"] = "application/json";
  const answer = await fetch(url, {
    method, headers: sent, signal, credentials: "omit", cache: "no-store",
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (answer.ok) return answer;
  let reason = `${answer.status} ${answer.statusText}`;
  try {
    reason = (await answer.json()).reason ?? reason;
  } catch {
    // no JSON: the status has to do
  }
  if (answer.status === 401 && name !== "whoami" && /^(Login|Authorisation) failed$/.test(reason)) refused();
  throw new Refused(answer.status, reason);
}

// The value of an answer; null where it has none.  `whole` gives the response itself too.
export async function ask(name, more = {}) {
  const answer = await send(name, more);
  const text = await answer.text();
  const value = text ? JSON.parse(text) : null;
  return more.whole ? [value, answer] : value;
}

// -- what happens

const AGAIN_MS = [500, 1000, 2000, 5000, 10000];

// Follows /api/events until `close`; comes again by itself and goes on after the last event it saw.
export class Follower {
  constructor(query, { event, state }) {
    this.query = query;
    this.event = event;
    this.state = state;
    this.last = "";
    this.closed = false;
    this.tries = 0;
    this.stop = null;
    this.run();
  }

  close() {
    this.closed = true;
    this.stop?.abort();
  }

  async run() {
    while (!this.closed) {
      this.stop = new AbortController();
      try {
        const headers = this.last ? { "last-event-id": this.last } : {};
        const answer = await send("events", { query: this.query, headers, signal: this.stop.signal });
        this.tries = 0;
        this.state("open", "following what happens");
        await this.read(answer.body.pipeThrough(new TextDecoderStream()).getReader());
      } catch (error) {
        if (this.closed) return;
        if (error instanceof Refused && [400, 401, 403, 404].includes(error.status)) {
          this.state("refused", error.message);
          return;
        }
        this.state("lost", `no connection to the server: ${error.message}`);
      }
      if (this.closed) return;
      const wait = AGAIN_MS[Math.min(this.tries, AGAIN_MS.length - 1)];
      this.tries += 1;
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  async read(reader) {
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      text += value;
      const parts = text.split("\n\n");
      text = parts.pop();
      for (const part of parts) this.take(part);
    }
    this.state("lost", "the server closed the stream");
  }

  take(part) {
    const fields = {};
    for (const line of part.split("\n")) {
      const at = line.indexOf(": ");
      if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
    }
    if (fields.id) this.last = fields.id;
    if (fields.event && !this.closed) this.event(fields.event, JSON.parse(fields.data));
  }
}
