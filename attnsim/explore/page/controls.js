// The controls: each shows a key of the state and says when it changed. What they offer is the server's catalogue.

import { unitColour } from "./drawing.js";
import { figures, make } from "./format.js";

const step = (low, high, by) => d3.range(Math.round((high - low) / by)).map((i) => +(low + i * by).toFixed(2));
const MULTIPLES = [...step(0.25, 2, 0.05), ...step(2, 4, 0.1), 4]; // stops of a slider; any value may be typed
const DENSITIES = [0.01, 0.02, 0.05, ...step(0.1, 1, 0.05), 1];
const SHARED = [1, 2, 4, 8]; // GPUs of a server; an address may say another number
const SHAPE = ["heads", "kv_heads", "head_dim"];
const OWN = { heads: "32", kv_heads: "8", head_dim: "128" };

export class Controls {
  // `turn(changes, node)`: keys of the state with their values ("" takes one off), and the control that was used.
  constructor(form, turn) {
    this.turn = turn;
    this.inputs = {};
    this.figures = {};
    this.sliders = {};
    const [question, gpu, kernel] = ["question", "gpu", "kernel"].map((id) => form.querySelector(`#${id}`));
    const text = (key, options = {}) => this.#input(key, make("input", { type: "text", ...options }));
    this.shape = make("div", { class: "pair" }, ...SHAPE.map((key) => this.#small(key, { heads: "heads", kv_heads: "KV heads", head_dim: "head dim" }[key], { inputmode: "numeric" })));
    question.append(
      this.#row("model", "Model", this.#select("model", (value) => (value ? { model: value, ...blank(SHAPE) } : { model: "", ...OWN }))),
      this.shape,
      this.#row("pass", "Pass", this.#select("pass")),
      this.#row("tp", "TP, GPUs", this.#slider("tp", SHARED.map(String))),
      make("div", { class: "pair" }, this.#small("batch", "batch", { inputmode: "numeric" }), this.#small("seq", "length", {})),
      this.#row("lengths", "Lengths", text("lengths", { placeholder: "1:4096 x 63, 512:2560" })),
      this.#row("mask", "Mask", text("mask", { list: "masks", placeholder: "as the model has it" })),
      (this.masks = make("datalist", { id: "masks" })),
      this.#row("density", "Density", this.#slider("density", DENSITIES.map(String))),
      this.#row("dtype", "Number format", this.#select("dtype")),
    );
    this.rows = make("div", { id: "figures" });
    gpu.append(
      this.#row("gpu", "Base GPU", this.#select("gpu")),
      make("p", { class: "note" }, "Each figure as a multiple of the base, or typed as a value: 6TB/s."),
      this.rows,
      (this.reset = make("button", { type: "button", onclick: () => this.turn(blank(Object.keys(this.figures)), this.reset) }, "GPU as it is")),
      this.#row("tiles", "Tiles", this.#select("tiles")),
      this.#row("cache", "L2 before", this.#select("cache")),
    );
    this.about = make("p", { class: "note", id: "about-kernel" });
    kernel.append(this.#row("kernel", "Whose kernel", this.#select("kernel")), this.about);
    this.inputs.kernel.setAttribute("aria-describedby", "about-kernel");
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  #input(key, node, event = "change", value = (node) => ({ [key]: node.value.trim() })) {
    node.id = `in-${key}`;
    node.dataset.key = key;
    node.addEventListener(event, () => this.turn(value(node), node));
    return (this.inputs[key] = node);
  }

  #select(key, value) {
    return this.#input(key, make("select"), "change", value && ((node) => value(node.value)));
  }

  #row(key, label, node) {
    return make("div", { class: "row" }, make("label", { for: `in-${key}` }, label), node);
  }

  #small(key, label, options) {
    return make("label", {}, label, this.#input(key, make("input", { type: "text", ...options })));
  }

  // A slider of named stops with its value beside it.
  #slider(key, stops) {
    const [node, told] = [make("input", { type: "range", min: 0, max: stops.length - 1, step: 1 }), make("output", { for: `in-${key}` })];
    this.sliders[key] = { stops, told };
    this.#input(key, node, "input", () => ({ [key]: key === "density" && stops[node.value] === "1" ? "" : stops[node.value] }));
    return make("span", { class: "sliding" }, node, told);
  }

  #place(key, value, told, spoken) {
    const { stops, told: output } = this.sliders[key];
    write(this.inputs[key], d3.minIndex(stops, (stop) => Math.abs(stop - value)));
    output.textContent = told;
    this.inputs[key].setAttribute("aria-valuetext", spoken);
  }

  // `grid` says what a static build has, by key: other controls are greyed.
  offer(catalogue, defaults, grid = null) {
    this.catalogue = catalogue;
    fill(this.inputs.model, [{ id: "", label: "a shape of one's own" }, ...catalogue.models]);
    fill(this.inputs.gpu, catalogue.gpus);
    fill(this.inputs.pass, catalogue.passes);
    fill(this.inputs.dtype, catalogue.dtypes.map((id) => ({ id, label: id })));
    fill(this.inputs.tiles, [{ id: "shipped", label: "as shipped" }, { id: "retuned", label: "retuned for the changed GPU" }]);
    fill(this.inputs.cache, [{ id: "", label: "cold at decode of a model, else warm" }, { id: "cold", label: "cold" }, { id: "warm", label: "warm: the call has just run" }]);
    fill(this.inputs.kernel, [{ id: "", label: "the usual one" }, ...catalogue.kernels]);
    this.masks.replaceChildren(...catalogue.masks.filter((mask) => mask.id).map((mask) => make("option", { value: mask.id }, mask.label)));
    this.defaults = defaults;
    const keys = catalogue.figures.map((figure) => figure.key).join();
    if (keys !== this.keys) this.rows.replaceChildren(...catalogue.figures.map((figure) => this.#figure(figure)));
    this.keys = keys;
    for (const figure of catalogue.figures) this.#refigure(figure, grid?.[figure.key]?.map(parseFloat) ?? MULTIPLES);
    if (grid) for (const node of [...Object.values(this.inputs), ...Object.values(this.figures).map((one) => one.typed)]) node.disabled = !(node.dataset.key in grid);
  }

  #figure({ key, label }) {
    const slider = make("input", { type: "range", step: 1 });
    const multiple = () => this.figures[key].stops[slider.value];
    this.#input(key, slider, "input", () => ({ [key]: multiple() === 1 ? "" : `${multiple()}x` }));
    const typed = make("input", { type: "text", "aria-label": `${label}, multiple or value`, "data-key": key });
    typed.addEventListener("change", () => this.turn({ [key]: typed.value.trim() }, typed));
    const value = make("output", { for: slider.id });
    const source = make("details", {}, make("summary"), make("span"));
    const row = make("div", { class: "figure" }, make("label", { for: slider.id }, label), value, slider, typed, source);
    this.figures[key] = { slider, typed, value, source, row, label };
    return row;
  }

  #refigure({ key, value, kind, source, low, high, unit_of: unit }, stops) {
    this.figures[key].stops = stops.filter((stop) => stop >= low - 1e-9 && stop <= high + 1e-9);
    const { row, source: details, slider } = this.figures[key];
    row.dataset.link = unit ?? "";
    if (unit) row.style.setProperty("--hue", unitColour(unit));
    details.firstChild.textContent = `base ${value}, ${kind}`;
    details.lastChild.textContent = source || "follows from other figures";
    slider.min = 0;
    slider.max = this.figures[key].stops.length - 1;
  }

  // Shows a state; what it lacks as its default.
  show(state) {
    const own = SHAPE.some((key) => state[key] && key !== "kv_heads") && !state.model;
    const of = { ...this.defaults, ...(own ? { model: "", tp: "" } : {}), ...(state.lengths ? { seq: "" } : {}), ...state };
    for (const [key, node] of Object.entries(this.inputs)) if (!(key in this.figures) && !(key in this.sliders)) write(node, of[key] ?? "");
    this.shape.hidden = !own;
    const density = +(of.density || 1);
    this.#place("density", density, density >= 1 ? "all" : `${figures(100 * density)} %`, density >= 1 ? "every pair of the mask" : `${figures(100 * density)} % at random`);
    this.#place("tp", +(of.tp || 1), of.tp || "1", `${of.tp || 1} GPUs share each layer`);
    for (const [key, { typed, row }] of Object.entries(this.figures)) {
      if (document.activeElement !== typed || !state[key]) write(typed, of[key] ?? "1x");
      row.classList.toggle("turned", key in state);
      if (!(key in state)) this.#turned(key, { multiple: 1 });
      else this.#turned(key, state[key].endsWith("x") ? { multiple: parseFloat(state[key]) } : { value: state[key] });
    }
    this.reset.disabled = !Object.keys(this.figures).some((key) => key in state);
    const kernel = this.catalogue.kernels.find((one) => one.id === state.kernel);
    if (kernel) this.kernel(kernel);
    else if (!state.kernel && this.usual) this.kernel(this.usual);
  }

  // What the answer says of the figures: their values, and multiples of those that were typed as values.
  answered(answer, state) {
    for (const [key, turned] of Object.entries(answer.turned ?? {})) this.#turned(key, turned);
    if (!state.kernel) this.kernel((this.usual = { code: answer.code, trust: answer.trust[0], id: answer.kernel }));
  }

  #turned(key, { multiple, value }) {
    const { slider, value: output, label, stops } = this.figures[key];
    const base = this.catalogue.figures.find((figure) => figure.key === key);
    if (multiple) slider.value = d3.minIndex(stops, (stop) => Math.abs(Math.log(stop / multiple)));
    const [number, ...unit] = base.value.split(" ");
    const told = value ?? (multiple === 1 ? base.value : [figures(+number.replaceAll(",", "") * multiple), ...unit].join(" "));
    output.textContent = told;
    slider.setAttribute("aria-valuetext", multiple ? `${label} ${figures(multiple)} times, ${told}` : `${label} ${told}`);
  }

  kernel({ id, code, trust }) {
    this.about.textContent = `${id}. Code: ${code}. Trust: ${trust}`;
  }

  // One clear line beside the control that was used last, or where there is none (an address), no more than the answer's.
  wrong(text, node) {
    this.clear();
    const at = node?.closest(".figure, .row, .pair") ?? null;
    if (!at) return;
    node.setAttribute("aria-invalid", "true");
    node.setAttribute("aria-errormessage", "wrong");
    at.after(make("p", { class: "wrong", id: "wrong" }, text));
  }

  clear() {
    document.getElementById("wrong")?.remove();
    document.querySelectorAll("[aria-invalid]").forEach((node) => ["aria-invalid", "aria-errormessage"].forEach((name) => node.removeAttribute(name)));
  }
}

const blank = (keys) => Object.fromEntries(keys.map((key) => [key, ""]));

function write(node, value) {
  if (node.tagName === "SELECT" && value && ![...node.options].some((option) => option.value === value)) node.append(make("option", { value }, value));
  if (node.value !== String(value)) node.value = value;
}

function fill(select, options) {
  const kept = select.value;
  select.replaceChildren(...options.map(({ id, label }) => make("option", { value: id }, label)));
  select.value = kept;
}
