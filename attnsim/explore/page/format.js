// Numbers as people read them; the sentence itself comes from the server.

const SI = [[1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];

export function figures(value, digits = 3) {
  if (value == null || !Number.isFinite(+value)) return "–";
  const rounded = Number((+value).toPrecision(digits));
  return rounded.toLocaleString("en", { maximumFractionDigits: 10, minimumFractionDigits: 0 });
}

export function time(seconds) {
  if (seconds == null || seconds === "") return "–";
  const [scale, prefix] = SI.find(([size]) => Math.abs(seconds) >= size) ?? SI[3];
  return `${figures(seconds / scale)} ${prefix}s`;
}

export const times = (ratio) => `${(+ratio).toFixed(2)}x`;

export const range = (low, high, show = (x) => x) => `${show(low)}–${show(high)}`;

// A short name in place of an element: tag, attributes, children.
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

export function table(of, columns = of.length ? Object.keys(of[0]) : []) {
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" },
    make("table", {},
      make("thead", {}, make("tr", {}, ...columns.map((column) => make("th", { scope: "col" }, column.replaceAll("_", " "))))),
      make("tbody", {}, ...of.map((row) => make("tr", {},
        ...columns.map((column) => make("td", {}, cell(row[column]))))))));
}

const cell = (value) =>
  typeof value === "number" ? figures(value, 4) : value == null ? "" : String(value);
