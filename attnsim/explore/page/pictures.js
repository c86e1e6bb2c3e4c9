// The pictures of the first tab, each from the tidy table that its command writes; `base` is the unchanged GPU's.

import { BASE, GHOST, algorithmColour, ink, key, linked, middle, names, plot, powers, small, stepColour, tensorColour, unitColour, unitName, unitOf } from "./drawing.js";
import { figures, range, time, times } from "./format.js";

const left = (width) => (small(width) ? 112 : 136);
const wider = (width) => (small(width) ? 112 : 150);

const unit = (row) => (row.level === "smem" ? "shared_memory" : row.level);

export function roofline({ rows: table, base }, width) {
  const LEVELS = ["hbm", "l2", "smem"];
  const NAMES = { hbm: "HBM", l2: "L2", smem: "SMEM" };
  const machine = (of) => {
    const points = of.filter((row) => row.kind === "point");
    const peak = of.find((row) => row.kind === "ceiling" && row.name.startsWith("tensor"));
    return { points, peak, roofs: of.filter((row) => row.kind === "diagonal" && points.some((p) => p.level === row.level)) };
  };
  const now = machine(table);
  const was = machine(base);
  const all = [now, was].flatMap((one) => one.points);
  const ridges = [now, was].flatMap((one) => one.roofs.map((roof) => one.peak.flops_per_s / roof.bytes_per_s));
  const xs = [...all.map((p) => +p.intensity_flop_per_byte), ...ridges].filter((x) => x > 0);
  const x = [d3.min(xs) / 3, d3.max(xs) * 3];
  const top = d3.max([now, was], (one) => +(one.peak?.flops_per_s ?? 0));
  const bottom = Math.min(d3.min(all, (p) => +p.flops_per_s) / 3, top / 30);
  const roof = (one, level, column) => {
    const slope = +level[`${column}bytes_per_s`];
    const peak = +one.peak[`${column}flops_per_s`];
    const ridge = peak / slope;
    return [[Math.max(x[0], bottom / slope), 0], [ridge, 1], [x[1], 2]].map(([at, i]) => ({ at, flops: i ? peak : slope * at }));
  };
  const draw = (one, ghost) => one.roofs.toReversed().flatMap((level) => {
    const hue = unit(level);
    const strong = { x: "at", y: "flops", clip: true, stroke: ghost ? middle() : unitColour(hue), ...linked([], hue) };
    return [
      Plot.line(roof(one, level, ""), { ...strong, strokeWidth: ghost ? 1.5 : 2.2, strokeOpacity: ghost ? 0.8 : 1 }),
      !ghost && Plot.line(roof(one, level, "achievable_"), { ...strong, strokeWidth: 1.3, strokeDasharray: "5,4" }),
    ];
  });
  const flops = (p, of) => (p.flops_per_s * p.time_s) / p[of];
  const dots = now.points.toSorted((a, b) => LEVELS.indexOf(a.level) - LEVELS.indexOf(b.level));
  const slopes = now.roofs.map((level) => ({ unit: unit(level), at: x[0] * 1.15, flops: level.bytes_per_s * x[0] * 1.15, level }));
  const figure = plot(width, {
    height: small(width) ? 270 : 300,
    marginLeft: 52,
    x: { type: "log", domain: x, label: "useful FLOPs per byte of that level", ticks: powers(x), tickFormat: (v) => figures(v), grid: true },
    y: { type: "log", domain: [bottom, top * 2], label: "useful TFLOP/s", ticks: powers([bottom, top * 2]), tickFormat: (v) => figures(v / 1e12), grid: true },
    marks: [
      ...draw(was, true), ...draw(now, false),
      Plot.text([now.peak].filter(Boolean), { x: x[1], y: "flops_per_s", text: (d) => `tensor cores ${figures(d.flops_per_s / 1e12)} TFLOP/s`, dy: -8, textAnchor: "end", ...linked([], "tensor") }),
      Plot.dot(was.points, { x: "intensity_flop_per_byte", y: "flops_per_s", r: 5, stroke: middle(), strokeWidth: 1.5, fill: "var(--ghost)" }),
      Plot.ruleX(dots, { x: "intensity_flop_per_byte", y1: (p) => flops(p, "time_high_s"), y2: (p) => flops(p, "time_low_s"), stroke: (p) => unitColour(unit(p)), strokeWidth: 2, ...linked(dots, unit) }),
      Plot.dot(dots, { x: "intensity_flop_per_byte", y: "flops_per_s", r: 5.5, fill: (p) => unitColour(unit(p)), stroke: "var(--page)", ...linked(dots, unit), title: (p) => `${unitName(unit(p))}: ${figures(p.flops_per_s / 1e12)} TFLOP/s, ${figures(p.intensity_flop_per_byte)} FLOPs a byte` }),
      Plot.text(dots, { x: "intensity_flop_per_byte", y: (p) => flops(p, "time_high_s"), text: (p) => NAMES[p.level], dy: 12, fill: (p) => unitColour(unit(p)), fontWeight: 600, stroke: "var(--page)", strokeWidth: 3, ...linked(dots, unit) }),
    ],
  });
  const entries = slopes.map((s) => [`${unitName(s.unit)} ${figures(s.level.bytes_per_s / 1e12)} TB/s`, unitColour(s.unit)]);
  return [figure, key(...entries, ["what kernels reach", null, "dash"], ...(was.points.length ? [BASE] : []))];
}

export function units({ rows: table, base }, width) {
  const bars = (of) => of.filter((row) => !["total", "idle"].includes(row.part));
  const [now, was] = [bars(table), bars(base)];
  const total = (of) => of.filter((row) => row.part === "total");
  const longest = d3.max([...table, ...base], (row) => +row.seconds);
  const hue = (row) => unitColour(row.part);
  const figure = plot(width, {
    height: 26 * now.length + 56,
    marginLeft: left(width), marginRight: 62, marginTop: 22,
    x: { label: "time within the call; bars overlap", domain: [0, longest], ticks: small(width) ? 3 : 5, tickFormat: time, grid: true },
    y: { domain: now.map((row) => row.part), padding: 0.25 },
    marks: [
      names(left(width), unitName),
      Plot.barX(was, { y: "part", x: "seconds", fill: GHOST, ...linked(was, (row) => row.part) }),
      Plot.barX(now, { y: "part", x: "seconds", fill: hue, insetTop: 4, insetBottom: 4, ...linked(now, (row) => row.part), title: (row) => `${unitName(row.part)}: ${time(row.seconds)}, ${figures(100 * row.share)} % of the call` }),
      ...[true, false].map((bounds) => [bounds, now.filter((row) => row.bounds === bounds)]).map(([bounds, of]) =>
        Plot.text(of, { y: "part", x: longest, text: (row) => time(row.seconds), textAnchor: "start", dx: 6, fontWeight: bounds ? 700 : 400, ...linked(of, (row) => row.part) })),
      Plot.ruleX(total(base), { x: "seconds", stroke: middle(), strokeDasharray: "4,3", strokeWidth: 1.5 }),
      Plot.ruleX(total(table), { x: "seconds", stroke: ink(), strokeWidth: 1.8 }),
      Plot.text(total(table), { x: "seconds", frameAnchor: "top", dy: -14, dx: 4, textAnchor: "end", text: (row) => `the call: ${time(row.seconds)}`, fontWeight: 600 }),
    ],
  });
  return [figure, key(["hue: the unit; bold: twice its rate gains most", null, "none"], ...(was.length ? [BASE] : []))];
}

export function levers({ rows: table, base }, width) {
  const name = (row) => (row.figure ? row.figure : `${row.lever}: ${row.change}`);
  const most = (of) => of.toSorted((a, b) => b.speedup - a.speedup);
  const now = most(table).filter((row) => Math.abs(row.speedup - 1) >= 0.005).slice(0, 9);
  const shown = new Set(now.map(name));
  const was = base.filter((row) => shown.has(name(row)));
  if (!now.length) return [nothing("No single figure, made twice as good, changes the time by 0.5 %.")];
  const ends = d3.extent([...now, ...was].map((row) => +row.speedup).concat(1));
  const hue = (row) => (row.figure ? unitColour(row.unit) : "var(--page)");
  const figure = plot(width, {
    height: 30 * now.length + 50,
    marginLeft: wider(width), marginRight: 48,
    x: { label: "speedup of the call", domain: ends, ticks: 4, tickFormat: times, nice: true, grid: true },
    y: { domain: now.map(name), padding: 0.28 },
    marks: [
      names(wider(width)),
      Plot.barX(was, { y: name, x1: 1, x2: "speedup", fill: GHOST, ...linked(was, (row) => row.unit) }),
      Plot.barX(now, { y: name, x1: 1, x2: "speedup", fill: hue, stroke: (row) => (row.figure ? hue(row) : ink()), insetTop: 5, insetBottom: 5, ...linked(now, (row) => row.unit), title: (row) => `${name(row)}: ${times(row.speedup)}, then busiest: ${unitName(row.busiest)}` }),
      Plot.text(now, { y: name, x: (row) => Math.max(1, row.speedup), text: (row) => times(row.speedup), textAnchor: "start", dx: 5, fontWeight: 600, ...linked(now, (row) => row.unit) }),
      Plot.ruleX([1], { stroke: ink() }),
    ],
  });
  return [figure, key(["hue: whose figure; latencies halved", null, "none"], ["the kernel changed", ink(), "hollow"], ...(was.length ? [BASE] : []))];
}

export function split({ rows: of }, width) {
  if (!of.length) return [nothing("Nothing is turned: the GPU is as it is. Turn a figure and its share of the change appears here.")];
  let before = 1;
  const steps = of.map((row) => {
    const whole = row.first == null || row.figure.startsWith("all");
    const from = whole ? 1 : before;
    if (!whole) before *= row.mean;
    return { ...row, whole, from, to: from * row.mean, name: whole ? "all together" : row.figure, unit: unitOf(row.figure) };
  });
  const parts = steps.filter((row) => !row.whole);
  const right = (width) => (small(width) ? 84 : 118);
  const figure = plot(width, {
    height: 40 * steps.length + 50,
    marginLeft: wider(width), marginRight: right(width),
    x: { label: "speedup over the unchanged GPU", ticks: small(width) ? 2 : 4, inset: 8, tickFormat: times, nice: true, grid: true, domain: d3.extent(steps.flatMap((s) => [1, s.from, s.to, s.from * (s.mean_low ?? 1), s.from * (s.mean_high ?? 1), s.from * (s.last ?? 1), s.from * (s.first ?? 1)])) },
    y: { domain: steps.map((row) => row.name), padding: 0.35 },
    marks: [
      names(wider(width)),
      Plot.barX(steps, { y: "name", x1: "from", x2: "to", fill: (row) => (row.whole ? ink() : unitColour(row.unit)), fillOpacity: (row) => (row.whole ? 0.75 : 1), ...linked(steps, (row) => row.unit), title: (row) => row.change }),
      Plot.ruleY(steps, { y: "name", x1: (row) => row.from * row.mean_low, x2: (row) => row.from * row.mean_high, stroke: ink(), strokeWidth: 1.3, ...linked(steps, (row) => row.unit) }),
      Plot.dot(parts, { y: "name", x: (row) => row.from * row.first, r: 5.5, stroke: ink(), fill: "var(--page)", ...linked(parts, (row) => row.unit) }),
      Plot.dot(parts, { y: "name", x: (row) => row.from * row.last, r: 3.5, fill: ink(), stroke: "var(--page)", ...linked(parts, (row) => row.unit) }),
      Plot.ruleX([1], { stroke: ink() }),
      Plot.text(steps, { y: "name", frameAnchor: "right", textAnchor: "start", dx: 8, lineHeight: 1.15, text: (row) => `${times(row.mean)}\n${range(row.mean_low, row.mean_high, (x) => times(x).slice(0, -1))}`, ...linked(steps, (row) => row.unit) }),
    ],
  });
  return [figure, key(["bar: mean over all orders; line, and beside: its 90 % range", null, "none"], ["○ alone   ● after the others", null, "none"])];
}

export function curve({ rows: table, base }, width, { show = "time", at } = {}) {
  const column = table.some((row) => row.density != null) ? "density" : "seq_q";
  const speedup = show === "speedup" && table.some((row) => row.speedup != null);
  const y = speedup ? "speedup" : "time_s";
  const [low, high] = speedup ? ["speedup_low", "speedup_high"] : ["time_low_s", "time_high_s"];
  const ordered = (of) => of.filter((row) => row[y] != null && row[y] !== "").toSorted((a, b) => a[column] - b[column]);
  const series = d3.groups(ordered(table), (row) => row.implementation ?? "");
  const was = d3.groups(ordered(base), (row) => row.implementation ?? "");
  const hue = ([, of]) => algorithmColour(of[0].algorithm);
  const same = (i) => series.slice(0, i).filter((one) => hue(one) === hue(series[i])).length; // others of its hue, told apart by dashes
  const dash = (i) => ["none", "7,3", "3,3", "1,3"][same(i) % 4];
  const figure = plot(width, {
    height: small(width) ? 260 : 300, marginLeft: 60, marginRight: 18,
    x: { type: column === "density" ? "linear" : "log", base: 2, label: column === "density" ? "density: share of pairs that count" : "sequence length", tickFormat: (v) => (column === "density" ? `${figures(v * 100)} %` : v >= 1024 ? `${figures(v / 1024)}k` : v), grid: true, ticks: small(width) ? 5 : 8 },
    y: { type: speedup ? "linear" : "log", label: speedup ? "speedup over the unchanged GPU" : "time", tickFormat: speedup ? times : time, ticks: 5, grid: true },
    marks: [
      ...was.flatMap(([, of]) => [
        Plot.areaY(of, { x: column, y1: low, y2: high, fill: GHOST, fillOpacity: 0.5 }),
        Plot.line(of, { x: column, y, stroke: middle(), strokeWidth: 2, strokeDasharray: "5,3" }),
      ]),
      ...series.flatMap(([, of], i) => [
        Plot.areaY(of, { x: column, y1: low, y2: high, fill: hue(series[i]), fillOpacity: 0.18 }),
        of.length > 1 ? Plot.line(of, { x: column, y, stroke: hue(series[i]), strokeWidth: 2.2, strokeDasharray: dash(i) }) : Plot.ruleY(of, { y, stroke: hue(series[i]), strokeWidth: 2.2, strokeDasharray: dash(i) }),
        Plot.dot(of, { x: column, y, r: 3.2, fill: (row) => (row.clock_by === "power" ? "var(--page)" : hue(series[i])), stroke: hue(series[i]), title: (row) => `${row.implementation}, ${figures(row[column], 5)}: ${speedup ? times(row[y]) : time(row[y])} (${range(row[low], row[high], speedup ? times : time)}), ${row.trust}` }),
      ]),
      at && Plot.ruleX([at], { stroke: ink(), strokeDasharray: "2,3" }),
      at && Plot.text([at], { x: at, frameAnchor: "top", dy: 2, dx: 4, textAnchor: "start", text: () => "now asked", fill: "currentColor" }),
    ],
  });
  const limited = series.some(([, of]) => of.some((row) => row.clock_by === "power"));
  return [figure, key(...series.map((one, i) => [`${one[0]}, band: 90 % range`, hue(one), same(i) ? "dash" : null]), ...(limited ? [["hollow: the power limit lowers the clock", null, "none"]] : []), ...(was.length ? [BASE] : []))];
}

// The parts of a layer, or of a step, below one another.
export function layer({ rows: now, base }, width) {
  const longest = d3.max([...now, ...base], (row) => +row.time_high_s);
  const name = (row) => (row.times > 1 ? `${row.times} x ${row.part}` : row.part);
  const figure = plot(width, {
    height: 26 * now.length + 56, marginLeft: wider(width), marginRight: 62,
    x: { label: "time of the parts, one after the other; line: 90 % range", domain: [0, longest], ticks: small(width) ? 3 : 5, tickFormat: time, grid: true },
    y: { domain: now.map(name), padding: 0.25 },
    marks: [
      names(wider(width)),
      Plot.barX(base, { y: name, x: "time_s", fill: GHOST }),
      Plot.barX(now, { y: name, x: "time_s", fill: (row) => stepColour(row.group), insetTop: 4, insetBottom: 4, title: (row) => `${row.part}: ${time(row.time_s)}, busiest: ${unitName(row.busiest)}` }),
      Plot.ruleY(now, { y: name, x1: "time_low_s", x2: "time_high_s", stroke: ink(), strokeWidth: 1.3 }),
      Plot.text(now, { y: name, x: longest, text: (row) => time(row.time_s), textAnchor: "start", dx: 6 }),
    ],
  });
  const groups = [...new Set(now.map((row) => row.group))];
  return [figure, key(...groups.map((group) => [group, stepColour(group)]), ...(base.length ? [BASE] : []))];
}

export function timeline({ rows: table, base }, width) {
  const LINK = { tensor: "tensor", softmax: "exp", copy: "l2" };
  const lane = (row) => (row.unit === "copy" ? `load ${row.tensor}` : `warpgroup ${+row.warpgroup + 1}`);
  const [now, was] = [table, base];
  const lanes = [...new Set([...now, ...was].map(lane))].toSorted((a, b) => a.startsWith("warp") - b.startsWith("warp"));
  const end = d3.max(now, (row) => +row.end_us);
  const bars = (mine, top, height, ghost) => Plot.barX(mine, {
    y: lane, x1: "start_us", x2: (row) => Math.min(row.end_us, end), insetTop: top, insetBottom: 42 - top - height,
    fill: ghost ? GHOST : (row) => tensorColour(row.tensor), ...linked(mine, (row) => LINK[row.unit]),
    title: (row) => `${row.unit} ${row.tensor}: ${figures(row.start_us)} to ${figures(row.end_us)} µs`,
  });
  const unit = (of, name) => of.filter((row) => row.unit === name && row.start_us < end);
  // Tiles in flight together lie below one another.
  const tiles = d3.groups(unit(now, "copy"), lane).flatMap(([, of]) => {
    const ends = [];
    const placed = of.toSorted((a, b) => a.start_us - b.start_us).map((row) => {
      const free = ends.findIndex((past) => past <= row.start_us);
      const at = free < 0 ? Math.min(ends.length, 3) : free;
      ends[at] = row.end_us;
      return [row, at];
    });
    return d3.groups(placed, ([, at]) => at).map(([at, some]) => bars(some.map(([row]) => row), 2 + (24 / ends.length) * at, 24 / ends.length - (ends.length > 1), false));
  });
  const figure = plot(width, {
    height: 42 * lanes.length + 42, marginLeft: left(width), marginTop: 4,
    x: { label: "µs from the start of the kernel", domain: [0, end], ticks: small(width) ? 4 : 9, grid: true },
    y: { domain: lanes, padding: 0 },
    marks: [
      names(left(width)),
      bars(unit(was, "copy"), 28, 6, true), bars(unit(was, "tensor"), 28, 6, true), bars(unit(was, "softmax"), 34, 6, true),
      ...tiles, bars(unit(now, "tensor"), 2, 12, false), bars(unit(now, "softmax"), 14, 12, false),
    ],
  });
  const said = { S: "S = Q Kᵀ", P: "softmax", O: "O = P V" };
  const seen = [...new Set(now.map((row) => row.tensor))];
  return [figure, key(...seen.map((name) => [said[name] ?? `load ${name}`, tensorColour(name)]), ...(was.length ? [["below: unchanged GPU", null, "ghost"]] : []))];
}

export function nothing(text) {
  const node = document.createElement("p");
  node.className = "note";
  node.textContent = text;
  return node;
}
