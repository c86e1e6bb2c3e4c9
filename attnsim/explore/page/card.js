// A picture on the page: its title, a sentence, the drawing, its table, and what can be copied and saved of it.

import { ask, download, isStatic } from "./api.js";
import { make, table } from "./format.js";
import { nothing } from "./pictures.js";

const COPIES = { command: "command", python: "Python", bibtex: "BibTeX" };
const DRAWN = ["svg", "pdf", "png", "csv"]; // by attnsim.plot
export const PRINTED = ["json", "csv"]; // of what the command prints

export class Card {
  // `draw(answer, width, options)` gives elements; `options()` what the view asks of it, `above` a control,
  // `formats` those of its files, `asked()` what a question about it says beside the state.
  constructor(name, { draw, wide = false, options = () => ({}), above = null, title = name, seen = false, formats = DRAWN, asked = () => ({}) }) {
    Object.assign(this, { name, draw, options, seen, asked });
    this.title = make("h2", {}, title);
    this.alt = make("p", { class: "alt", id: `alt-${name}` });
    this.body = make("div", { class: "body" }, nothing("One moment."));
    this.rows = make("details", { class: "rows", ontoggle: () => this.#table() }, make("summary", {}, "Table"));
    this.said = make("span", { class: "said", role: "status" });
    this.tools = make("div", { class: "tools", hidden: true },
      ...Object.entries(COPIES).map(([kind, label]) => make("button", { type: "button", "aria-label": `Copy ${title} as ${label}`, "data-copy": kind, onclick: () => this.#copy(kind, label) }, `copy ${label}`)),
      ...formats.map((format) => make("button", { type: "button", "aria-label": `Save ${title} as ${format.toUpperCase()}`, "data-save": format, onclick: () => this.#save(format) }, format)),
      this.said);
    this.node = make("article", { class: `card${wide ? " wide" : ""}`, id: `card-${name}`, "aria-describedby": `alt-${name}` },
      this.title, this.alt, above, this.body, this.rows, this.tools);
  }

  show(answer, state) {
    this.answer = answer;
    this.state = state;
    this.tools.hidden = false;
    this.#say(answer.alt ?? "");
    this.said.textContent = "";
    this.#fresh();
    this.redraw();
    this.#table();
  }

  redraw() {
    if (!this.answer) return;
    const width = Math.max(240, Math.floor(this.body.clientWidth));
    const drawn = this.draw(this.answer, width, this.options(this.state));
    drawn.filter((node) => node.tagName === "svg").forEach((svg) => svg.setAttribute("aria-label", this.alt.textContent || this.title.textContent));
    this.body.replaceChildren(...drawn);
  }

  #fresh(stale = false) {
    this.body.classList.toggle("stale", stale);
    this.node.setAttribute("aria-busy", String(stale));
  }

  // The sentence of the picture is for screen readers; what is wrong is for everybody.
  #say(text, seen = this.seen) {
    this.alt.textContent = text;
    this.alt.classList.toggle("unseen", !seen);
  }

  stale() {
    this.#fresh(true);
  }

  empty(text) {
    Object.assign(this, { answer: null, state: null });
    this.tools.hidden = true;
    this.#fresh();
    this.#say(text, true);
    this.body.replaceChildren();
  }

  // The last good answer stays, greyed; why there is no newer one stands above it.
  fail(reason) {
    this.node.setAttribute("aria-busy", "false");
    if (this.answer) this.body.classList.add("stale");
    else this.body.replaceChildren();
    this.#say(reason.message, true);
  }

  #table() {
    const of = this.answer?.rows;
    if (!this.rows.open || !of) return;
    const columns = this.answer.columns ?? Object.keys(of[0] ?? {});
    const marked = (rows, gpu) => rows.map((row) => ({ ...row, "": gpu }));
    const base = this.answer.base ?? [];
    const all = base.length ? [...marked(of, "turned"), ...marked(base, "unchanged")] : of;
    this.rows.replaceChildren(this.rows.firstChild, table(all, base.length ? ["", ...columns] : columns));
  }

  async #copy(kind, label) {
    try {
      const text = (await ask("said", { name: this.name, state: this.state, ...this.asked() }))[kind];
      this.said.textContent = `copied: ${text.length > 160 ? `${label}, ${text.split("\n").length} lines` : text}`;
      this.copied = text;
      await navigator.clipboard.writeText(text).catch(() => (this.said.textContent = text));
    } catch (reason) {
      this.said.textContent = reason.message;
    }
  }

  async #save(format) {
    try {
      this.said.textContent = `making the ${format.toUpperCase()}`;
      const style = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
      const { bytes, name } = await download("export", { name: this.name, state: this.state, format, style, ...this.asked() });
      const link = make("a", { href: URL.createObjectURL(bytes), download: name });
      link.click();
      URL.revokeObjectURL(link.href);
      this.said.textContent = `saved: ${name}`;
    } catch (reason) {
      this.said.textContent = reason.message;
    }
  }

  // What a static build cannot answer is greyed.
  still() {
    if (isStatic()) this.tools.querySelectorAll("[data-save]").forEach((button) => (button.disabled = true));
  }
}
