// What every picture shares: its frame, its colours, and what a mark is linked with.

let look = { dark: false, colours: null, names: {}, units: {} };

export function setLook(catalogue) {
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const units = Object.fromEntries(catalogue.figures.map((figure) => [figure.path, figure.unit_of]));
  look = { dark: scheme.matches, colours: catalogue.colours, names: catalogue.names, units };
  const style = document.documentElement.style;
  for (const name of ["page", "text", "faint", "middle", "grid"]) style.setProperty(`--${name}`, palette()[name]);
}

const palette = () => look.colours[look.dark ? "dark" : "light"];
export const unitColour = (name) => palette().units[name] ?? palette().middle;
export const tensorColour = (name) => palette().tensors[name] ?? palette().middle;
export const algorithmColour = (name) => palette().algorithms[name?.split("@")[0]] ?? ink();
export const stepColour = (group) => palette().steps[group] ?? palette().middle;
export const unitName = (name) => look.names[name] ?? name?.replaceAll("_", " ") ?? "";
export const unitOf = (figure) => look.units[figure] || null;
export const ink = () => palette().text;
export const middle = () => palette().middle;
export const GHOST = "var(--ghost)"; // the unchanged GPU, in every picture

// A hue for what has none of its own: a table's series.
export const hueOf = (i) => palette().series[i % palette().series.length];

export const small = (width) => width < 430;

// A picture of Plot. The style element that Plot puts inside is left out: style.css has it.
export function plot(width, options) {
  const figure = Plot.plot({
    width,
    marginTop: 8,
    marginBottom: 40,
    marginRight: 16,
    style: { fontSize: "12px", background: "transparent", color: "inherit" },
    ...options,
    marks: options.marks.filter(Boolean),
  });
  figure.querySelectorAll("style").forEach((style) => style.remove());
  figure.setAttribute("role", "img");
  return figure;
}

// A mark's render option: each element carries what it is linked with (`of` a datum), and what a click on it picks.
export function linked(data, of, pick) {
  return {
    render(index, scales, values, dimensions, context, next) {
      const group = next(index, scales, values, dimensions, context);
      if (!group) return group;
      const whole = typeof of === "string";
      if (whole) group.dataset.link = of;
      else {
        [...group.children].forEach((node, i) => {
          const datum = data[Array.isArray(index[i]) ? index[i][0] : index[i]];
          node.dataset.link = of(datum) ?? "";
          if (pick) node.dataset.pick = pick(datum) ?? "";
        });
      }
      return group;
    },
  };
}

// Lines that say what the marks are; `ghost` stands for the unchanged GPU.
export function key(...entries) {
  const node = document.createElement("p");
  node.className = "key";
  for (const [text, hue, kind] of entries) {
    const entry = document.createElement("span");
    const mark = document.createElement("i");
    if (kind) mark.className = kind;
    if (hue) mark.style.setProperty("--hue", hue);
    entry.append(mark, text);
    node.append(entry);
  }
  return node;
}

export const BASE = ["unchanged GPU", null, "ghost"];

// Labels of the bars in the left margin, in several lines where they are longer than it is wide (`lineWidth` is in em).
export const names = (margin, tickFormat = String) =>
  Plot.axisY({ label: null, tickSize: 0, tickPadding: 6, lineWidth: (margin - 6) / 12, fill: "currentColor", tickFormat });

// Powers of ten: the ticks of a logarithmic axis.
export const powers = ([low, high]) => d3.range(Math.ceil(Math.log10(low)), Math.log10(high)).map((power) => 10 ** power);
