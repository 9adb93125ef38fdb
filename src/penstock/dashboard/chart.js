// Lines over time, drawn as SVG: the last minutes, from samples that came one by one.

import { brief, clock, fill, h } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 640;
const HEIGHT = 180;
const LEFT = 48;
const BOTTOM = 20;
const TOP = 8;

export const KEPT = 600; // samples

function s(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

// The next "round" number: 1, 2, 5, 10, 20, 50 ...
function roundUp(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value);
}

export class History {
  constructor() {
    this.samples = [];
  }

  add(time, values) {
    this.samples.push({ time, values });
    if (this.samples.length > KEPT) this.samples.shift();
  }
}

// series: [{name, of: index into values, class}]; unit: how a value is told.
export class Chart {
  constructor({ title, series, unit }) {
    this.series = series;
    this.unit = unit;
    this.title = title;
    this.drawing = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    this.values = series.map(() => h("b", {}, "–"));
    const legend = series.map((one, i) => h("li", { class: one.class }, h("span", { class: "key", "aria-hidden": "true" }), one.name, " ", this.values[i]));
    this.node = h("figure", { class: "chart" }, h("figcaption", {}, h("span", {}, title), h("ul", {}, legend)), this.drawing);
  }

  draw(history) {
    const samples = history.samples;
    if (!samples.length) return;
    const last = samples[samples.length - 1];
    const first = Math.min(samples[0].time, last.time - 60);
    const most = roundUp(Math.max(...samples.flatMap(({ values }) => this.series.map((one) => values[one.of]))));
    const x = (time) => LEFT + ((WIDTH - LEFT - 4) * (time - first)) / (last.time - first || 1);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
    const grid = [0, 0.5, 1].map((part) => s("g", { class: "grid" },
      s("line", { x1: LEFT, x2: WIDTH - 4, y1: y(most * part), y2: y(most * part) }),
      label(LEFT - 6, y(most * part) + 4, "end", brief(most * part))));
    const times = [[first, "start"], [(first + last.time) / 2, "middle"], [last.time, "end"]];
    const marks = times.map(([time, anchor]) => label(x(time), HEIGHT - 4, anchor, clock(time)));
    const lines = this.series.map((one) => s("polyline", {
      class: one.class, points: samples.map(({ time, values }) => `${x(time).toFixed(1)},${y(values[one.of]).toFixed(1)}`).join(" "),
    }));
    fill(this.drawing, grid, marks, lines);
    const told = this.series.map((one, i) => {
      this.values[i].textContent = this.unit(last.values[one.of]);
      return `${one.name} ${this.unit(last.values[one.of])}`;
    });
    this.drawing.setAttribute("aria-label", `${this.title}, last ${Math.round(last.time - first)} seconds: now ${told.join(", ")}`);
  }
}

function label(x, y, anchor, text) {
  return s("text", { x, y, "text-anchor": anchor }, text);
}
