// The tabs and what stands in each: cards of pictures, and the forms of the budget and of one's own timings.

import { ask } from "./api.js";
import { Card, PRINTED } from "./card.js";
import { make } from "./format.js";
import { budget, compare, mine, why } from "./more_pictures.js";
import { curve, layer, levers, nothing, roofline, split, timeline, units } from "./pictures.js";

const GOALS = ["time", "power", "area", "energy", "cost"];

export const TABS = { pictures: "Pictures", compare: "Compare kernels", budget: "Budget", mine: "My data", why: "Why" };

const MIXES = ["pass=prefill: 0.5; pass=decode: 0.5", "pass=prefill: 0.2; pass=decode, batch=64: 0.8"];

const labelled = (text, node) => make("label", {}, make("span", { class: "label" }, text), node);

// A length as people write it: 8192 or 8k.
const length = (text) => parseFloat(text) * (/k$/i.test(text) ? 1024 : 1) || null;

export class Views {
  // `turn` changes the state; `look` the view (tab, what a curve shows).
  constructor({ tabs, views }, { turn, look }) {
    Object.assign(this, { turn, look, view: {}, state: {} });
    const cards = (...of) => make("div", { class: `cards${of.length === 1 ? " one" : ""}` }, ...of.map((card) => card.node));
    const card = (name, options) => (this.cards[name] = new Card(name, options));
    this.cards = {};
    this.tabs = {};
    this.panels = {
      pictures: cards(
        card("roofline", { draw: roofline, title: "Roofline" }),
        card("units", { draw: units, title: "Busy time of each unit" }),
        card("levers", { draw: levers, title: "Levers: each figure twice as good", seen: true, formats: PRINTED }),
        card("split", { draw: split, title: "What each change brings" }),
        card("curve", { draw: curve, title: "Time over length or density", above: this.#chooser(), options: (state) => ({ show: this.view.show, at: length(state.seq ?? this.defaults.seq) }) }),
        card("timeline", { draw: timeline, title: "First turns of an SM" }),
        card("layer", { draw: layer, title: "The whole layer", seen: true, formats: PRINTED })),
      compare: cards(card("compare", { draw: compare, title: "Whose kernel", wide: true, seen: true, formats: PRINTED })),
      budget: make("div", {}, this.#budget(), cards(card("budget", { draw: budget, title: "Machines within a budget", wide: true, seen: true, options: (state) => ({ minimise: state.minimise ?? this.defaults.minimise }) }))),
      mine: cards(card("mine", { draw: mine, title: "Measured over predicted time", wide: true, seen: true, above: this.#mine(), asked: () => this.timings })),
      why: cards(card("why", { draw: why, title: "Why it takes that long", wide: true, seen: true, formats: PRINTED })),
    };
    this.cards.mine.body.replaceChildren(nothing("A CSV of timings, a row each: GPU, shape and time. It stays on this machine."));
    this.cards.budget.body.replaceChildren(nothing("Say what may vary and what may not be exceeded, then search."));
    for (const [name, label] of Object.entries(TABS)) {
      const tab = make("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, onclick: () => look({ tab: name }) }, label);
      const panel = make("section", { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}` }, this.panels[name]);
      this.tabs[name] = { tab, panel };
      tabs.append(tab);
      views.append(panel);
    }
    tabs.addEventListener("keydown", (event) => this.#arrows(event));
    views.addEventListener("click", (event) => this.#pick(event.target.closest("[data-pick]")?.dataset.pick));
  }

  get tab() {
    return this.view.tab in TABS ? this.view.tab : "pictures";
  }

  // The pictures that the open tab shows and that follow the state by themselves; a search is asked for. The sentence
  // has its next lever from the levers, in every tab.
  get following() {
    return { pictures: ["roofline", "units", "split", "levers", "curve", "timeline", "layer"], compare: ["compare", "levers"], why: ["why", "levers"] }[this.tab] ?? ["levers"];
  }

  show(view, state) {
    Object.assign(this, { view, state });
    for (const [name, { tab, panel }] of Object.entries(this.tabs)) {
      const open = name === this.tab;
      tab.setAttribute("aria-selected", String(open));
      tab.tabIndex = open ? 0 : -1;
      panel.hidden = !open;
    }
    if (!this.defaults) return;
    const varied = (state.space ?? this.defaults.space).split(",");
    this.space.querySelectorAll("input").forEach((box) => (box.checked = varied.includes(box.value)));
    const [first, second] = (state.minimise ?? this.defaults.minimise).split(",");
    [this.first.value, this.second.value, this.limit.value, this.case.value] = [first, second ?? "", state.limit ?? "", state.case ?? ""];
    const chosen = `${state.vary ?? "seq"} ${view.show ?? "time"}`;
    this.choices.forEach((choice) => (choice.checked = choice.value === chosen));
  }

  redraw() {
    Object.values(this.cards).filter((card) => card.node.offsetParent).forEach((card) => card.redraw());
  }

  #arrows(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const names = Object.keys(TABS);
    const next = names[(names.indexOf(this.tab) + by + names.length) % names.length];
    this.look({ tab: next });
    this.tabs[next].tab.focus();
  }

  #pick(picked) {
    if (!picked) return;
    if (this.tab === "compare") this.turn({ kernel: picked });
    const machine = this.cards.budget.answer?.rows.find((row) => String(row.machine) === picked);
    if (this.tab === "budget" && machine) this.turn({ ...this.unturned, ...machine.figures });
  }

  #chooser() {
    const options = { "seq time": "time over length", "seq speedup": "speedup over length", "density time": "time over density" };
    this.choices = Object.keys(options).map((value) => make("input", { type: "radio", name: "curve", value, onchange: () => {
      const [vary, show] = value.split(" ");
      this.look({ show: show === "time" ? "" : show });
      this.turn({ vary: vary === "seq" ? "" : vary });
    } }));
    return make("div", { class: "choose", role: "radiogroup", "aria-label": "What the curve shows" }, ...this.choices.map((choice) => make("label", {}, choice, options[choice.value])));
  }

  offer(catalogue) {
    this.defaults = catalogue.defaults;
    this.unturned = Object.fromEntries(catalogue.figures.map(({ key }) => [key, ""]));
    this.space.replaceChildren(...catalogue.figures.map(({ key, label }) => make("label", {}, make("input", { type: "checkbox", value: key }), label)));
  }

  #budget() {
    const goals = (label, none) => make("select", { "aria-label": label }, none && make("option", { value: "" }, "–"), ...GOALS.map((goal) => make("option", { value: goal }, goal)));
    this.space = make("div", { class: "choose", role: "group", "aria-label": "Figures that may vary" });
    [this.first, this.second] = [goals("Minimise"), goals("and", true)];
    this.limit = make("input", { type: "text", "aria-label": "Limits", placeholder: "area<=1.1x; power<=700 W" });
    this.case = make("input", { type: "text", "aria-label": "Mix of questions", placeholder: "pass=prefill: 0.5; pass=decode, batch=16: 0.5", list: "mixes" });
    this.search = make("button", { type: "submit" }, "Search");
    this.found = make("p", { class: "note", role: "status" });
    return make("form", { onsubmit: (event) => {
      event.preventDefault();
      const space = [...this.space.querySelectorAll(":checked")].map((box) => box.value).join(",");
      this.turn({ space, limit: this.limit.value.trim(), case: this.case.value.trim(), minimise: [this.first.value, this.second.value].filter(Boolean).join(",") });
      this.#searched();
    } },
    make("p", { class: "note" }, "What may vary, from 1 to 2 times the base:"), this.space,
    make("div", { class: "ask" }, labelled("Mix of questions, each with its share of the unchanged GPU's time; empty: the question as it is asked", this.case), labelled("Limits", this.limit), labelled("Minimise", this.first), labelled("and", this.second), this.search),
    make("datalist", { id: "mixes" }, ...MIXES.map((value) => make("option", { value }))), this.found);
  }

  async #searched() {
    const [card, state] = [this.cards.budget, this.state];
    this.search.disabled = true;
    this.found.textContent = "Searching: each machine is replayed, some seconds.";
    card.stale();
    try {
      const answer = await ask("picture", { name: "budget", state });
      card.show(answer, state);
      this.found.textContent = "A click on a machine loads it; the sentence above is then its answer.";
    } catch (reason) {
      card.fail(reason);
      this.found.textContent = "";
    }
    this.search.disabled = false;
  }

  #mine() {
    const again = { onchange: () => this.#checked() };
    this.file = make("input", { type: "file", accept: ".csv,text/csv", ...again });
    this.map = make("input", { type: "text", placeholder: "heads_q=n_heads, seq=SeqLen", ...again });
    this.unit = make("select", again, ...["", "s", "ms", "us", "ns"].map((unit) => make("option", { value: unit }, unit || "as its column says")));
    this.machine = make("input", { type: "text", placeholder: "as its column says", ...again });
    return make("div", { class: "ask" }, labelled("Timings (CSV; choose or drop)", this.file), labelled("Which column is ours", this.map), labelled("Unit of times", this.unit), labelled("GPU of all rows", this.machine));
  }

  async #checked() {
    const [card, file] = [this.cards.mine, this.file.files[0]];
    if (!file) return;
    const pairs = this.map.value.split(",").map((pair) => pair.split("=").map((word) => word.trim())).filter(([ours]) => ours);
    this.timings = { csv: await file.text(), file: file.name, map: Object.fromEntries(pairs), time_unit: this.unit.value, gpu: this.machine.value.trim() };
    card.stale();
    try {
      card.show(await ask("check", this.timings), {});
    } catch (reason) {
      card.fail(reason);
    }
  }
}
