// The pictures of the other tabs: kernels beside each other, machines within a budget, timings of one's own, why.

import { BASE, GHOST, hueOf, ink, key, linked, middle, names, plot, small, unitColour, unitName } from "./drawing.js";
import { figures, make, range, table as tabled, time } from "./format.js";
import { nothing } from "./pictures.js";

export function compare({ rows: table, base }, width) {
  const now = table.filter((row) => row.time_s).toSorted((a, b) => a.time_s - b.time_s);
  const was = base.filter((row) => row.time_s);
  const hue = (row) => unitColour(row.busiest);
  const link = (row) => row.busiest;
  const marginLeft = small(width) ? 118 : 210;
  const figure = plot(width, {
    height: 24 * now.length + 56, marginLeft, marginRight: 66,
    x: { type: "log", label: "time, with its 90 % range", ticks: small(width) ? 2 : 6, tickFormat: time, grid: true },
    y: { domain: now.map((row) => row.implementation), padding: 0.3 },
    marks: [
      names(marginLeft),
      Plot.ruleY(was, { y: "implementation", x1: "time_low_s", x2: "time_high_s", stroke: GHOST, strokeWidth: 12 }),
      Plot.dot(was, { y: "implementation", x: "time_s", r: 5, stroke: middle(), fill: "var(--page)", strokeWidth: 1.5 }),
      Plot.ruleY(now, { y: "implementation", x1: "time_low_s", x2: "time_high_s", stroke: hue, strokeWidth: 4, strokeOpacity: 0.6, ...linked(now, link, (row) => row.implementation) }),
      Plot.dot(now, { y: "implementation", x: "time_s", r: 6, fill: hue, stroke: "var(--page)", ...linked(now, link, (row) => row.implementation), title: (row) => `${row.implementation}: ${time(row.time_s)} (${range(row.time_low_s, row.time_high_s, time)}), busiest: ${unitName(row.busiest)}, ${row.trust}; a click asks about it` }),
      Plot.text(now, { y: "implementation", frameAnchor: "right", textAnchor: "start", dx: 8, text: (row) => time(row.time_s), fontWeight: 600, ...linked(now, link) }),
    ],
  });
  const bounds = [...new Set(now.map((row) => row.busiest))];
  return [figure, key(...bounds.map((name) => [`busiest: ${unitName(name)}`, unitColour(name)]), ...(was.length ? [BASE] : []))];
}

const show = (value) => figures(value);
const AXES = {
  time: ["time_s", "time", time], power: ["power_w", "power, W", show], area: ["area_mm2", "area, mm²", show],
  energy: ["energy_j", "energy, J", show], cost: ["cost_usd", "cost, $", show],
};

export function budget({ rows: others, base: was }, width, { minimise }) {
  const asked = minimise.split(",").map((name) => name.trim()).filter((name) => name in AXES);
  const [first, second] = [...new Set([...asked, "time", "area"])];
  const [[x, xLabel, xShow], [y, yLabel, yShow]] = [AXES[first], AXES[second]];
  const front = others.filter((row) => row.front).toSorted((a, b) => a[x] - b[x]);
  const rest = others.filter((row) => !row.front);
  const number = (row) => String(row.machine);
  const cases = Object.keys(others[0] ?? {}).filter((column) => column.startsWith(OF_CASE)); // of a mix
  const mark = { x, y, ...{ title: (row) => `machine ${row.machine}: ${label(row)}; ${time(row.time_s)}, ${figures(row[y])}; a click loads it` } };
  const figure = plot(width, {
    height: small(width) ? 300 : 380, marginLeft: 58, marginTop: 18,
    x: { label: cases.length && x === "time_s" ? OF_MIX : xLabel, tickFormat: xShow, ticks: small(width) ? 3 : 6, grid: true, nice: true, inset: 10 },
    y: { label: yLabel, tickFormat: yShow, ticks: 6, grid: true, nice: true, inset: 10 },
    marks: [
      Plot.dot(rest, { ...mark, r: 4, stroke: unitColour("hbm"), strokeOpacity: (row) => (row.feasible ? 1 : 0.3), ...linked(rest, () => "", number) }),
      Plot.line(front, { x, y, curve: "step-after", stroke: unitColour("tensor"), strokeWidth: 2 }),
      Plot.dot(front, { ...mark, r: 6, symbol: "diamond", fill: unitColour("tensor"), stroke: "var(--page)", ...linked(front, () => "", number) }),
      Plot.dot(was, { x, y, r: 9, symbol: "star", fill: ink() }),
      Plot.text(was, { x, y, text: () => "unchanged", dy: -14, dx: 10, textAnchor: "end", fontWeight: 600 }),
    ],
  });
  const shown = [...front, ...rest.filter((row) => row.feasible).toSorted((a, b) => a.time_s - b.time_s)].slice(0, 8);
  const list = make("table", {},
    make("thead", {}, make("tr", {}, ...["machine", cases.length ? OF_MIX : "time", ...cases.map((column) => column.slice(OF_CASE.length)), yLabel, ""].map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...shown.map((row) => make("tr", {}, make("td", {}, label(row)), make("td", {}, `${time(row.time_s)} (${range(row.time_low_s, row.time_high_s, time)})`),
      ...cases.map((column) => make("td", {}, time(row[column]))), make("td", {}, figures(row[y])), make("td", {}, make("button", { type: "button", "data-pick": number(row), "aria-label": `Load machine ${row.machine}: ${label(row)}` }, "load"))))));
  const scroll = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Machines" }, list);
  return [figure, key(["Pareto front", unitColour("tensor")], ["within the limits", unitColour("hbm")], ["★ unchanged", null, "none"]), scroll];
}

const OF_CASE = "time_s of ";
const OF_MIX = "time of the mix (unchanged GPU: 1 s)";

const label = (row) => Object.entries(row.figures ?? {}).map(([name, value]) => `${name} ${value}`).join(", ");

export function mine({ rows: of, mapping, refused }, width) {
  const folded = (text, of) => make("details", { class: "rows" }, make("summary", {}, text), tabled(of));
  const told = [folded("How the columns were read", mapping), ...(refused.length ? [folded(`Left out (${refused.length})`, refused)] : [])];
  return [...(of.length ? ratios(of, width) : [nothing("No row could be predicted.")]), ...told];
}

function ratios(of, width) {
  const series = [...new Set(of.map((row) => row.series ?? row.implementation))];
  const hue = (row) => hueOf(series.indexOf(row.series ?? row.implementation));
  const figure = plot(width, {
    height: small(width) ? 260 : 320, marginLeft: 58, marginTop: 26,
    x: { type: "log", label: "measured time", tickFormat: time, ticks: small(width) ? 3 : 6, grid: true, inset: 8 },
    y: { label: "measured / predicted", tickFormat: times2, grid: true, zero: false, nice: true, inset: 8 },
    marks: [
      Plot.ruleX(of, { x: "measured_s", y1: "low", y2: "high", stroke: GHOST, strokeWidth: 8 }),
      Plot.ruleY([1], { stroke: ink() }),
      Plot.dot(of, { x: "measured_s", y: "measured_over_predicted", r: 5, fill: (row) => (row.in_range ? hue(row) : "var(--page)"), stroke: hue, strokeWidth: 2, title: (row) => `line ${row.line}: measured ${time(row.measured_s)}, predicted ${time(row.predicted_s)}` }),
    ],
  });
  return [figure, key(...series.map((name, i) => [name, hueOf(i)]), ["90 % range", null, "ghost"], ["hollow: outside it", null, "none"])];
}

const times2 = (value) => `${value.toFixed(2)}x`;

export function why(answer) {
  const kernels = answer.kernels.map((kernel) => {
    const limits = Object.entries(kernel.limits ?? {});
    const was = answer.base.find((other) => other.kernel === kernel.kernel);
    return make("section", {},
      make("h3", {}, `${kernel.kernel}: ${kernel.blocks_per_sm} ${kernel.blocks_per_sm === 1 ? "block" : "blocks"} an SM, limited by ${kernel.limited_by}`),
      tabled(limits.map(([resource, room]) => ({ resource, "blocks an SM has room for": room, "": resource === kernel.limited_by ? "limits" : "" }))),
      make("p", { class: "note" }, `${figures(kernel.blocks, 6)} blocks of ${kernel.threads} threads, ${kernel.registers_per_thread} registers a thread, ${figures(kernel.shared_memory_bytes / 1024)} KiB shared memory, ${figures(kernel.waves)} waves, ${time(kernel.time_s)}.`),
      was && make("p", { class: "note" }, `On the unchanged GPU: ${figures(was.blocks, 6)} blocks, ${was.blocks_per_sm} an SM, limited by ${was.limited_by}; ${figures(was.waves)} waves, ${time(was.time_s)}.`));
  });
  return [make("div", { class: "cards" }, make("section", {}, make("h3", {}, "Loop nest"), make("pre", {}, answer.loop_nest)), make("div", {}, ...kernels))];
}
