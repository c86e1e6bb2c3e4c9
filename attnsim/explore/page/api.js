// Questions to the server that served this page, or, in a static build, to the answers beside it.

let token = null;
let stored = null; // of a static build
let n = 0;
const page = crypto.randomUUID(); // so that two pages do not overtake each other

export async function connect() {
  const here = new URL(location.href);
  token = here.searchParams.get("token") ?? sessionStorage.getItem("attnsim");
  if (token) sessionStorage.setItem("attnsim", token); // so that a reload finds it: it leaves the address
  else stored = await fetch("static.json").then((got) => (got.ok ? got.json() : null)).catch(() => null);
  if (!token && !stored) throw new Error("The address lacks its token: open the address that attnsim explore printed.");
}

export const isStatic = () => stored !== null;

export const grid = () => stored?.grid ?? null; // what a static build has, by key

// The file that holds a state's answers: keys that differ from their defaults, in the order of the alphabet.
function place(state, keys = null) {
  const turned = Object.entries(state).filter(([key, value]) => value !== (stored.defaults[key] ?? "1x") && (keys ?? [key]).includes(key));
  return turned.toSorted(([a], [b]) => (a < b ? -1 : 1)).map((pair) => pair.join("=")).join("&");
}

async function storedAnswer(name, { state = {}, name: picture }) {
  const { catalogues, headlines, pictures } = stored;
  const found = name === "catalogue" ? catalogues[place(state, ["gpu", "model", "pass"])] : name === "headline" ? headlines[place(state)] : null;
  if (found) return found;
  const file = ["picture", "said"].includes(name) && pictures[place(state)];
  const answers = file ? await (await fetch(file)).json() : null;
  const answer = name === "said" ? answers?.said?.[picture] : answers?.[picture];
  if (!answer || answer.error) throw new Error(answer?.error ?? "This page holds answers computed beforehand, and none for this: attnsim explore has them all.");
  return answer;
}

async function send(name, body, signal) {
  const got = await fetch(`api/${name}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Attnsim-Token": token },
    body: JSON.stringify({ ...body, page, n: (n += 1) }),
    signal,
  }).catch((reason) => {
    throw signal?.aborted ? reason : new Error("The server does not answer: is attnsim explore still running?");
  });
  return got;
}

// An answer, or an Error whose message is the server's one line.
export async function ask(name, body, signal) {
  if (stored) return storedAnswer(name, body);
  const got = await send(name, body, signal);
  const answer = await got.json().catch(() => ({ error: `The server answered ${got.status} without a reason.` }));
  if (!answer.ok) throw Object.assign(new Error(answer.error), { overtaken: got.status === 409 });
  return answer;
}

// The bytes of a file and its name.
export async function download(name, body) {
  const got = await send(name, body);
  if (!got.ok) throw new Error((await got.json()).error);
  const named = /filename="?([^";]+)/.exec(got.headers.get("Content-Disposition") ?? "");
  return { bytes: await got.blob(), name: named?.[1] ?? `attnsim.${body.format}` };
}

const PATIENCE = 2000; // ms after which an answer is given up for a newer question

// Latest wins: one request at a time; what was asked meanwhile is sent next, and only the newest of it.
export class Latest {
  #flying = null;
  #next = null;

  constructor(name, done, failed) {
    Object.assign(this, { name, done, failed });
  }

  async ask(state) {
    this.#next = state;
    if (this.#flying) {
      if (performance.now() - this.#flying.since > PATIENCE) this.#flying.abort();
      return;
    }
    while (this.#next) {
      const asked = this.#next;
      this.#next = null;
      this.#flying = Object.assign(new AbortController(), { since: performance.now() });
      try {
        const answer = await ask(this.name, { state: asked }, this.#flying.signal);
        this.done(answer, asked);
      } catch (reason) {
        if (!this.#next && !reason.overtaken) this.failed(reason, asked);
      }
    }
    this.#flying = null;
  }
}
