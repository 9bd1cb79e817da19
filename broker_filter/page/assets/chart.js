// Axes and paths of an SVG; shared by the figures.
const SVG = "http://www.w3.org/2000/svg";

export function add(parent, name, attributes = {}, text = "") {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text) node.textContent = text;
  parent.append(node);
  return node;
}

export function drawing(holder, width, height, title) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", title);
  holder.replaceChildren(svg);
  return svg;
}

export function scale(low, high, from, to) {
  const slope = (to - from) / (high - low || 1);
  return (value) => from + (value - low) * slope;
}

export function ticks(low, high, count) {
  const rough = (high - low) / count;
  if (!(rough > 0)) return [];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
    found.push([i * step, (i * step).toFixed(Math.min(digits, 8))]);
  }
  return found;
}

export function line(xs, ys, x, y) {
  let path = "", pen = "M";
  xs.forEach((value, i) => {
    if (ys[i] === null) { pen = "M"; return; }
    path += `${pen}${x(value).toFixed(1)},${y(ys[i]).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

// A dot is a line of no length with round ends: one path for all of a source.
export function dots(xs, ys, x, y) {
  return xs.map((value, i) => (ys[i] === null ? "" : `M${x(value).toFixed(1)},${y(ys[i]).toFixed(1)}h.01`)).join("");
}

export function bars(xs, ys, errors, x, y) {
  return xs.map((value, i) => (ys[i] === null || errors[i] === null ? "" :
    `M${x(value).toFixed(1)},${y(ys[i] - errors[i]).toFixed(1)}V${y(ys[i] + errors[i]).toFixed(1)}`)).join("");
}
