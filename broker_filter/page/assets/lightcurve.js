// The light curve: points by source, curves, residuals; zoom and pan by button, key, mouse and touch.
import { add, bars, dots, drawing, line, scale, ticks } from "./chart.js";

const LEFT = 58, TOP = 8, GAP = 18, BOTTOM = 42;

export function lightCurve(figure, data) {
  const holder = figure.querySelector(".plot");
  const magnitudes = data.magnitudeZero !== null;
  const shown = new Set();
  let view = [...data.limits];

  legend(figure.querySelector(".legend"), data, shown, draw);
  const tools = figure.querySelector(".tools");
  tools.hidden = false;
  tools.addEventListener("click", (event) => move(event.target.dataset.do));
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all", p: "peak" };
  holder.tabIndex = 0;
  holder.setAttribute("role", "group");
  holder.setAttribute("aria-label", "Plot; plus and minus zoom, arrows move, 0 shows all, p the peak");
  holder.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && keys[event.key]) { move(keys[event.key]); event.preventDefault(); }
  });
  pointers(holder, () => view, () => frame().plot, set, () => move("all"));
  new ResizeObserver(draw).observe(holder);

  function set(low, high) {
    const [first, last] = data.limits, whole = last - first;
    const span = Math.min(Math.max(high - low, whole / 2000), whole * 1.5);
    const middle = Math.min(Math.max((low + high) / 2, first - whole / 4), last + whole / 4);
    view = [middle - span / 2, middle + span / 2];
    draw();
  }

  function move(what) {
    const [low, high] = view, span = high - low;
    if (what === "in") set(low + span / 4, high - span / 4);
    if (what === "out") set(low - span / 2, high + span / 2);
    if (what === "left") set(low - span / 4, high - span / 4);
    if (what === "right") set(low + span / 4, high + span / 4);
    if (what === "all") set(...data.limits);
    if (what === "peak") {
      const top = data.curve.time[data.curve.flux.indexOf(Math.max(...data.curve.flux))];
      set(top - (data.limits[1] - data.limits[0]) / 10, top + (data.limits[1] - data.limits[0]) / 10);
    }
  }

  function frame() {
    const width = Math.max(300, holder.clientWidth), right = magnitudes ? 48 : 10;
    const high = width < 500 ? 210 : 300, low = 90;
    return { width, high, low, height: TOP + high + GAP + low + BOTTOM, plot: [LEFT, width - right] };
  }

  function fluxLimits() {
    const whole = view[0] <= data.limits[0] && view[1] >= data.limits[1];
    if (whole) return data.fluxLimits;
    const inside = (time) => time >= view[0] && time <= view[1];
    const seen = data.curve.flux.filter((_, i) => inside(data.curve.time[i]));
    data.sources.forEach((one, i) => {
      if (shown.has(`s${i}`)) one.time.forEach((time, j) => {
        const [least, most] = data.fluxLimits;
        if (inside(time)) seen.push(Math.min(Math.max(one.flux[j], least), most));
      });
    });
    if (!seen.length) return data.fluxLimits;
    const low = Math.min(...seen), high = Math.max(...seen), margin = 0.08 * (high - low) || 0.01;
    return [low - margin, high + margin];
  }

  function draw() {
    const at = frame(), x = scale(...view, ...at.plot);
    const limits = fluxLimits(), y = scale(...limits, TOP + at.high, TOP);
    const reach = residualReach(data), bottom = TOP + at.high + GAP;
    const r = scale(-reach, reach, bottom + at.low, bottom);
    const svg = drawing(holder, at.width, at.height, "Light curve");
    svg.classList.add("pan");
    const defs = add(svg, "defs");
    clip(defs, "upper", at.plot, TOP, at.high);
    clip(defs, "lower", at.plot, bottom, at.low);
    axes(svg, at, x, y, r, limits, reach, bottom);
    const upper = add(svg, "g", { "clip-path": "url(#upper)" });
    const lower = add(svg, "g", { "clip-path": "url(#lower)" });
    if (shown.has("model")) {
      const { time, low, high } = data.curve;
      const back = line([...time].reverse(), [...low].reverse(), x, y).replace("M", "L");
      add(upper, "path", { class: "band", d: `${line(time, high, x, y)}${back}Z` });
    }
    data.sources.forEach((one, i) => {
      if (!shown.has(`s${i}`)) return;
      const colour = `s${i % 8}`;
      add(upper, "path", { class: `bars ${colour}`, d: bars(one.time, one.flux, one.sigma, x, y) });
      add(upper, "path", { class: `dots ${colour}`, d: dots(one.time, one.flux, x, y) });
      add(lower, "path", { class: `bars ${colour}`, d: bars(one.time, one.residual, one.residual.map(() => 1), x, r) });
      add(lower, "path", { class: `dots ${colour}`, d: dots(one.time, one.residual, x, r) });
    });
    data.rivals.forEach((one, i) => {
      if (shown.has(`r${i}`)) add(upper, "path", { class: "rival", d: line(one.time, one.flux, x, y) });
    });
    if (shown.has("model")) add(upper, "path", { class: "model", d: line(data.curve.time, data.curve.flux, x, y) });
    add(lower, "path", { class: "model", d: `M${at.plot[0]},${r(0)}H${at.plot[1]}` });
    const last = x(data.lastEpoch);
    if (last > at.plot[0] && last < at.plot[1]) add(svg, "path", { class: "last", d: `M${last},${TOP}V${bottom + at.low}` });
  }

  function axes(svg, at, x, y, r, limits, reach, bottom) {
    const [left, right] = at.plot, foot = bottom + at.low;
    add(svg, "rect", { class: "axis", x: left, y: TOP, width: right - left, height: at.high });
    add(svg, "rect", { class: "axis", x: left, y: bottom, width: right - left, height: at.low });
    for (const [value, text] of ticks(...view, at.width < 500 ? 3 : 7)) {
      add(svg, "path", { class: "axis", d: `M${x(value)},${TOP}V${TOP + at.high}M${x(value)},${bottom}V${foot}` });
      add(svg, "text", { x: x(value), y: foot + 16, "text-anchor": "middle" }, text);
    }
    for (const [value, text] of ticks(...limits, 5)) {
      add(svg, "path", { class: "axis", d: `M${left},${y(value)}H${right}` });
      add(svg, "text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, text);
    }
    for (const value of [-Math.floor(reach / 1.3), 0, Math.floor(reach / 1.3)]) {
      add(svg, "text", { x: left - 6, y: r(value) + 4, "text-anchor": "end" }, String(value).replace("-", "−"));
    }
    if (magnitudes) {
      const faint = data.magnitudeZero - 2.5 * Math.log10(Math.max(limits[0], limits[1] / 8, 1e-6));
      const bright = data.magnitudeZero - 2.5 * Math.log10(Math.max(limits[1], 1e-6));
      for (const [value, text] of ticks(bright, faint, 5)) {
        const place = y(10 ** (-0.4 * (value - data.magnitudeZero)));
        add(svg, "path", { class: "last", d: `M${right},${place}h5` });
        add(svg, "text", { x: right + 7, y: place + 4 }, text);
      }
      add(svg, "text", { x: right + 7, y: bottom + 4 }, "mag");
    }
    const middle = TOP + at.high / 2, deep = bottom + at.low / 2;
    add(svg, "text", { x: 12, y: middle, transform: `rotate(-90 12 ${middle})`, "text-anchor": "middle" }, "flux / baseline");
    add(svg, "text", { x: 12, y: deep, transform: `rotate(-90 12 ${deep})`, "text-anchor": "middle" }, "residual / σ");
    add(svg, "text", { x: (left + right) / 2, y: foot + 34, "text-anchor": "middle" }, "MJD (TAI); dotted: last epoch");
  }

  draw();
}

function residualReach(data) {
  const all = data.sources.flatMap((one) => one.residual.filter((value) => value !== null).map(Math.abs));
  all.sort((a, b) => a - b);
  return 1.15 * Math.max(4, all[Math.floor(all.length * 0.97)] || 0);
}

function clip(defs, id, [left, right], top, height) {
  add(add(defs, "clipPath", { id }), "rect", { x: left, y: top, width: right - left, height });
}

function legend(holder, data, shown, draw) {
  const entries = [
    ...data.sources.map((one, i) => [`s${i}`, `s${i % 8}`, `${one.name} (${one.time.length})`, true]),
    ["model", "sm", `${data.curve.name} and its 68 %`, true],
    ...data.rivals.map((one, i) => [`r${i}`, "sr", one.name, i === 0]),
  ];
  holder.replaceChildren(...entries.map(([key, colour, name, on]) => {
    const label = document.createElement("label"), box = document.createElement("input");
    const swatch = document.createElement("span");
    box.type = "checkbox";
    box.checked = on;
    if (on) shown.add(key);
    swatch.className = `swatch ${colour}`;
    box.addEventListener("change", () => { shown[box.checked ? "add" : "delete"](key); draw(); });
    label.append(box, swatch, name);
    return label;
  }));
}

// One finger or the mouse moves, two fingers or Ctrl and the wheel zoom, two clicks show all.
function pointers(holder, view, range, set, all) {
  const down = new Map();
  const time = (clientX, [low, high], [left, right]) =>
    low + ((clientX - holder.getBoundingClientRect().left - left) / (right - left)) * (high - low);
  let start = null;
  const begin = () => { start = { view: [...view()], at: [...down.values()] }; };
  holder.addEventListener("pointerdown", (event) => {
    down.set(event.pointerId, event.clientX);
    holder.setPointerCapture(event.pointerId);
    begin();
  });
  for (const name of ["pointerup", "pointercancel"]) {
    holder.addEventListener(name, (event) => { down.delete(event.pointerId); begin(); });
  }
  holder.addEventListener("pointermove", (event) => {
    if (!down.has(event.pointerId)) return;
    down.set(event.pointerId, event.clientX);
    const now = [...down.values()], [low, high] = start.view;
    const was = start.at.map((at) => time(at, start.view, range()));
    if (now.length === 1) {
      const moved = was[0] - time(now[0], start.view, range());
      set(low + moved, high + moved);
    } else if (Math.abs(now[0] - now[1]) > 10) {
      const factor = Math.abs(start.at[0] - start.at[1]) / Math.abs(now[0] - now[1]);
      const middle = (was[0] + was[1]) / 2;
      set(middle - (middle - low) * factor, middle + (high - middle) * factor);
    }
  });
  holder.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const [low, high] = view(), at = time(event.clientX, [low, high], range());
    const factor = event.deltaY > 0 ? 1.25 : 0.8;
    set(at - (at - low) * factor, at + (high - at) * factor);
  }, { passive: false });
  holder.addEventListener("dblclick", all);
}
