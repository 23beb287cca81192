// Drawings of the engine view: short histories as lines, KV blocks as a map.

const SVG = "http://www.w3.org/2000/svg";
const GAP = 1;
const SIZES = [15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5]; // of a cell with its gap, in CSS pixels
const MAX_HEIGHT = 240;

/** A line over the last values, from 0 to the largest. */
export function sparkline(node, values, length) {
  const top = Math.max(...values, 1e-9);
  const x = (at) => ((length - values.length + at) * 100) / (length - 1);
  const y = (value) => 25 - (24 * value) / top;
  const line = values.map((value, at) => `${at ? "L" : "M"}${x(at).toFixed(2)} ${y(value).toFixed(2)}`).join("");
  let svg = node.firstChild;
  if (!svg) {
    svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 100 26");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    for (const name of ["area", "line"]) {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", name);
      svg.append(path);
    }
    node.append(svg);
  }
  svg.children[0].setAttribute("d", values.length > 1 ? `${line}L100 26L${x(0).toFixed(2)} 26Z` : "");
  svg.children[1].setAttribute("d", line);
}

/**
 * Blocks in their order, one cell each while they fit; else a cell stands for several and is filled by their shares.
 * runs: [state, how many]. Gives back how many blocks a cell is. The geometry is left in data attributes.
 */
export function blockMap(canvas, runs, blocks) {
  const width = canvas.clientWidth;
  if (!width || !blocks) return 1;
  const room = (size) => Math.floor((width + GAP) / size) * Math.floor(MAX_HEIGHT / size);
  const largest = SIZES.find((one) => room(one) >= blocks) || SIZES.at(-1);
  const unused = (size) => (width + GAP) % size;
  const near = SIZES.filter((one) => one <= largest && one >= Math.max(0.75 * largest, SIZES.at(-1)));
  const size = near.reduce((best, one) => (unused(one) < unused(best) ? one : best)); // the one that fills the width
  const perCell = Math.ceil(blocks / room(size));
  const columns = Math.floor((width + GAP) / size);
  const cells = Math.ceil(blocks / perCell);
  const height = Math.ceil(cells / columns) * size - GAP;
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  Object.assign(canvas.dataset, { size, columns, cells, perCell });
  const style = getComputedStyle(canvas);
  const colour = Object.fromEntries(["held", "cached", "free"].map((name) => [name, style.getPropertyValue(`--${name}`)]));
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const shares = inCells(runs, perCell, cells);
  for (let at = 0; at < cells; at += 1) {
    const left = (at % columns) * size;
    let bottom = Math.floor(at / columns) * size + size - GAP;
    const whole = Math.min(perCell, blocks - at * perCell);
    for (const state of ["held", "cached", "free"]) {
      const part = ((size - GAP) * shares[state][at]) / whole;
      pen.fillStyle = colour[state];
      if (part) pen.fillRect(left, bottom - part, size - GAP, part);
      bottom -= part;
    }
  }
  return perCell;
}

/** Blocks of each state in each cell. */
function inCells(runs, perCell, cells) {
  const shares = { held: new Uint32Array(cells), cached: new Uint32Array(cells), free: new Uint32Array(cells) };
  let block = 0;
  for (const [state, run] of runs) {
    for (let left = run; left > 0; ) {
      const cell = Math.floor(block / perCell);
      const part = Math.min(left, (cell + 1) * perCell - block);
      shares[state][cell] += part;
      block += part;
      left -= part;
    }
  }
  return shares;
}
