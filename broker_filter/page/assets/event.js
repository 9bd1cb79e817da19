// The figures of one event.
import { add, bars, dots, drawing, line, scale, ticks } from "./chart.js";
import { lightCurve } from "./lightcurve.js";

function history(figure, data) {
  const holder = figure.querySelector(".plot"), width = Math.max(280, holder.clientWidth), height = 260;
  const [left, right, top, foot] = [68, width - 10, 8, height - 42];
  const values = [...data.log10_k, ...data.certified.filter((one) => one !== null), data.threshold, 0];
  const [low, high] = [Math.min(...values), Math.max(...values)], margin = 0.08 * (high - low || 1);
  const first = Math.min(...data.last_epoch), last = Math.max(...data.last_epoch), wide = 0.06 * (last - first) || 0.5;
  const x = scale(first - wide, last + wide, left, right), y = scale(low - margin, high + margin, foot, top);
  const svg = drawing(holder, width, height, "log10 K of each alert over time");
  for (const [value, text] of ticks(low - margin, high + margin, 5)) {
    add(svg, "path", { class: "axis", d: `M${left},${y(value)}H${right}` });
    add(svg, "text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, text);
  }
  for (const [value, text] of ticks(first - wide, last + wide, 4)) {
    add(svg, "text", { x: x(value), y: foot + 16, "text-anchor": "middle" }, text);
  }
  add(svg, "path", { class: "last", d: `M${left},${y(data.threshold)}H${right}` });
  const errors = data.certified_error.map((one) => one ?? 0);
  [["log10_k", "s0"], ["certified", "s4"]].forEach(([name, colour]) => {
    add(svg, "path", { class: `bars ${colour}`, d: line(data.last_epoch, data[name], x, y) });
    add(svg, "path", { class: `dots ${colour}`, d: dots(data.last_epoch, data[name], x, y) });
  });
  add(svg, "path", { class: "bars s4", d: bars(data.last_epoch, data.certified, errors, x, y) });
  add(svg, "text", { x: 12, y: 110, transform: "rotate(-90 12 110)", "text-anchor": "middle" }, "log10 K");
  add(svg, "text", { x: (left + right) / 2, y: foot + 34, "text-anchor": "middle" }, "MJD (TAI); dotted: the threshold");
  const names = [["s0", "network"], ["s4", "certified"]];
  figure.querySelector(".legend").replaceChildren(...names.map(([colour, name]) => {
    const entry = document.createElement("span"), swatch = document.createElement("span");
    swatch.className = `swatch ${colour}`;
    entry.append(swatch, name);
    return entry;
  }));
}

function corner(figure, data) {
  const holder = figure.querySelector(".plot"), side = Math.min(640, Math.max(300, holder.clientWidth));
  const names = data.parameters.map((one) => one.name), edge = side < 450 ? 26 : 46;
  const box = (side - edge - 6) / names.length, inner = box - 5;
  const svg = drawing(holder, side, side, "Corner plot of the posterior");
  svg.style.maxWidth = `${side}px`;
  data.parameters.forEach((row, i) => {
    data.parameters.slice(0, i + 1).forEach((column, j) => {
      const left = edge + j * box, top = 4 + i * box;
      const cell = inner / data.cells;
      if (i === j) {
        const most = Math.max(...row.counts) || 1;
        const d = row.counts.map((count, k) => `M${(left + k * cell).toFixed(1)},${(top + inner).toFixed(1)}v${(-0.9 * inner * count / most).toFixed(1)}h${cell.toFixed(2)}V${(top + inner).toFixed(1)}Z`).join("");
        add(svg, "path", { class: "hist", d });
        const middle = scale(...row.limits, left, left + inner)(row.median);
        add(svg, "path", { class: "model", d: `M${middle},${top}v${inner}` });
      } else {
        const digits = data.pairs[`${column.name},${row.name}`];
        for (const level of ["1", "2"]) {
          let d = "";
          for (let k = 0; k < digits.length; k++) {
            if (digits[k] !== level) continue;
            const x = left + Math.floor(k / data.cells) * cell, y = top + inner - (k % data.cells + 1) * cell;
            d += `M${x.toFixed(1)},${y.toFixed(1)}h${(cell + 0.2).toFixed(1)}v${(cell + 0.2).toFixed(1)}h-${(cell + 0.2).toFixed(1)}Z`;
          }
          add(svg, "path", { class: `cell${level}`, d });
        }
      }
      add(svg, "rect", { class: "axis", x: left, y: top, width: inner, height: inner });
      if (i === names.length - 1) add(svg, "text", { x: left + inner / 2, y: side - 14, "text-anchor": "middle" }, column.label);
      if (j === 0 && i > 0) add(svg, "text", { x: 12, y: top + inner / 2, transform: `rotate(-90 12 ${top + inner / 2})`, "text-anchor": "middle" }, row.label);
    });
  });
}

const figure = (id) => document.getElementById(id);
const answer = await fetch(figure("light-curve").dataset.url);
if (answer.ok) {
  const data = await answer.json();
  lightCurve(figure("light-curve"), data.lightCurve);
  history(figure("history"), data.history);
  corner(figure("corner"), data.corner);
  document.documentElement.dataset.drawn = "yes";
} else {
  figure("light-curve").querySelector(".plot").textContent = "The figures cannot be had; reload the page.";
}
