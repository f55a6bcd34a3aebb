"use strict";
// Draws curves as SVG. A chart is {title, unit, log, limits, curves}; a curve {index, label, colour, dash, x: {name: [...]},
// mean, lower, upper, runs}, where `mean` may hold nulls, and the others may be absent; `marks` draws dots without a line.
// Without a band the single runs are drawn; `single`: the band covers single values, and a thin line marks where
// they are one each. `same` has, by axis, the labels of curves that coincide.
const WIDTH = 360, HEIGHT = 236, LEFT = 66, RIGHT = 10, TOP = 26, BOTTOM = 38;
const make = (name, attributes, parent) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (parent) parent.append(element);
  return element;
};
const write = (text, attributes, parent) => { make("text", attributes, parent).textContent = text; };
const ticks = (low, high, log) => {
  if (log) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const digit of high / low > 300 ? [1] : high / low > 20 ? [1, 3] : [1, 2, 5]) found.push(digit * 10 ** power);
    const shown = found.filter((value) => value >= low && value <= high);
    if (shown.length > 2) return shown;  // otherwise the range is so narrow that even steps fit
  }
  const rough = (high - low) / 6, unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((digit) => digit * unit).find((size) => size >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, count) => (first + count) * step);
};
const short = (value) => {
  if (Math.abs(value) >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (Math.abs(value) >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  if (value && Math.abs(value) < 1e-3) return value.toExponential().replace(/(\.\d{0,2})\d*e/, "$1e");
  return String(+value.toPrecision(6));
};
const path = (points) => {
  let line = "", drawn = false;
  for (const [x, y] of points) {
    if (Number.isFinite(x) && Number.isFinite(y)) { line += `${drawn ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`; drawn = true; } else drawn = false;
  }
  return line;
};
function plot(figure, chart, axis, axisTitle, singleRuns) {
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  write(chart.title, { x: LEFT, y: 16, class: "title" }, svg);
  write(axisTitle, { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, svg);
  write(chart.unit, { x: 10, y: (TOP + HEIGHT - BOTTOM) / 2, "text-anchor": "middle", transform: `rotate(-90 10 ${(TOP + HEIGHT - BOTTOM) / 2})` }, svg);
  const xs = chart.curves.flatMap((curve) => curve.x[axis] || []).filter(Number.isFinite);
  const finite = (value) => (value === null ? NaN : value);
  if (!xs.length) write("was not recorded", { x: WIDTH / 2, y: HEIGHT / 2, "text-anchor": "middle", class: "faint" }, svg);
  else {
    const [left, right] = [Math.min(0, ...xs), Math.max(...xs) || 1], [low, high] = chart.limits;
    const scale = chart.log ? Math.log : (value) => value;
    const px = (x) => LEFT + (WIDTH - RIGHT - LEFT) * (x - left) / (right - left);
    const py = (y) => TOP + (HEIGHT - BOTTOM - TOP) * (scale(high) - scale(y)) / (scale(high) - scale(low));
    for (const value of ticks(low, high, chart.log)) {
      make("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: py(value), y2: py(value), class: "grid" }, svg);
      write(short(value), { x: LEFT - 5, y: py(value) + 3.5, "text-anchor": "end" }, svg);
    }
    for (const value of ticks(left, right, false)) {
      make("line", { x1: px(value), x2: px(value), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4, class: "axis" }, svg);
      write(short(value), { x: px(value), y: HEIGHT - BOTTOM + 15, "text-anchor": "middle" }, svg);
    }
    make("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM, class: "axis" }, svg);
    const clip = `clip-${plot.count = (plot.count || 0) + 1}`;
    make("rect", { x: LEFT, y: TOP - 3, width: WIDTH - RIGHT - LEFT, height: HEIGHT - BOTTOM - TOP + 6 }, make("clipPath", { id: clip }, svg));
    const inside = make("g", { "clip-path": `url(#${clip})` }, svg);
    for (const value of chart.rules || []) make("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: py(value), y2: py(value), class: "rule" }, inside);
    for (const curve of chart.curves) {
      const group = make("g", { class: `s${curve.index}` }, inside), x = curve.x[axis] || [];
      const at = (values) => x.map((value, index) => [px(value), py(finite(values[index]))]);
      const edge = curve.single ? { stroke: curve.colour, "stroke-width": 0.8, opacity: 0.3 } : { opacity: 0.15 };
      if (curve.lower && !singleRuns) make("path", { d: `${path([...at(curve.upper), ...at(curve.lower).reverse()])}Z`, fill: curve.colour, ...edge }, group);
      const singles = (singleRuns || !curve.lower) && (curve.runs || []).length > 1 ? curve.runs : [];
      for (const values of singles) make("path", { d: path(at(values)), fill: "none", stroke: curve.colour, "stroke-width": 0.8, opacity: 0.6 }, group);
      if (!curve.marks) make("path", { d: path(at(curve.mean)), fill: "none", stroke: curve.colour, "stroke-width": 1.8, "stroke-dasharray": curve.dash || "" }, group);
      if (curve.marks || x.length < 12) for (const [cx, cy] of at(curve.mean)) if (Number.isFinite(cy)) make("circle", { cx, cy, r: curve.marks ? 1.8 : 2.5, fill: curve.colour, opacity: curve.marks ? 0.7 : 1 }, group);
    }
    const show = (wanted) => point(figure, chart, axis, wanted, px, left, right);
    figure.onpointermove = (event) => {
      const frame = svg.getBoundingClientRect();
      show(left + (right - left) * ((event.clientX - frame.left) / frame.width * WIDTH - LEFT) / (WIDTH - RIGHT - LEFT));
    };
    // Arrow keys step from update to update, Home and End go to the ends, Escape hides the values.
    const stops = [...new Set(xs)].sort((a, b) => a - b);
    let stop = stops.length - 1;
    figure.tabIndex = 0;
    figure.onfocus = () => show(stops[stop]);
    figure.onkeydown = (event) => {
      const next = { ArrowLeft: stop - 1, ArrowRight: stop + 1, Home: 0, End: stops.length - 1 }[event.key];
      if (event.key === "Escape") figure.onpointerleave();
      if (next === undefined) return;
      event.preventDefault();
      stop = Math.max(0, Math.min(stops.length - 1, next));
      show(stops[stop]);
    };
  }
  const [cursor, caption] = [document.createElement("div"), document.createElement("figcaption")];
  cursor.className = "cursor"; cursor.hidden = caption.hidden = true;
  caption.setAttribute("aria-live", "polite");
  figure.onpointerleave = figure.onblur = () => { cursor.hidden = caption.hidden = true; };
  figure.replaceChildren(svg, cursor, caption);
  for (const labels of chart.same[axis] || []) {
    const note = document.createElement("p");
    note.className = "same";
    note.textContent = `one line: ${labels.join(" = ")}`;
    figure.append(note);
  }
}
function point(figure, chart, axis, wanted, px, left, right) {
  const [svg, cursor, caption] = figure.children;
  const shown = chart.curves.filter((curve) => (curve.x[axis] || []).length && !svg.querySelector(`.s${curve.index}.off`));
  if (wanted < left || wanted > right || !shown.length) { cursor.hidden = caption.hidden = true; return; }
  const rows = shown.map((curve) => {
    let nearest = 0;
    curve.x[axis].forEach((x, index) => { if (Math.abs(x - wanted) < Math.abs(curve.x[axis][nearest] - wanted)) nearest = index; });
    return { curve, nearest, mean: curve.mean[nearest] };
  }).sort((a, b) => b.mean - a.mean);
  const at = rows[0].curve.x[axis][rows[0].nearest];
  caption.replaceChildren(short(at));
  for (const { curve, nearest, mean } of rows) {
    const [line, mark] = [document.createElement("div"), document.createElement("i")];
    mark.style.background = curve.colour;
    const number = (value) => (value === null ? "none" : String(+value.toPrecision(4)));
    const band = curve.lower ? ` (${number(curve.lower[nearest])} to ${number(curve.upper[nearest])})` : "";
    line.append(mark, `${curve.label}  ${number(mean)}${band}`);
    caption.append(line);
  }
  const frame = svg.getBoundingClientRect(), scale = frame.width / WIDTH, x = scale * px(at);
  Object.assign(cursor.style, { left: `${x}px`, top: `${scale * TOP}px`, height: `${scale * (HEIGHT - TOP - BOTTOM)}px` });
  cursor.hidden = caption.hidden = false;
  const fits = frame.width - x - caption.offsetWidth > 12;
  Object.assign(caption.style, { left: fits ? `${x + 10}px` : `${x - caption.offsetWidth - 10}px`, top: `${scale * TOP}px` });
}
