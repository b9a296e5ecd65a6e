// Line charts in SVG: as wide as the page, with gaps for unknown values, for mouse, touch, keyboard and screen reader.

import { h, s } from "./dom.js";
import { clock, NOTHING, serverNow } from "./format.js";

const HEIGHT = 168;
const PAD = { left: 44, right: 10, top: 10, bottom: 22 };

export class Chart {
  /** series: [{ name, key, tone, dashed, filled }]; format: a value in words; step: hold a value until the next. */
  constructor({ title, series, format, step = false, maximum = 0 }) {
    Object.assign(this, { title, series, format, step, maximum });
    this.points = [];
    this.hovered = null;
    this.width = 0;
    this.plot = h("div", { class: "chart-plot", tabindex: "0", role: "img", "aria-label": title });
    this.legend = h("div", { class: "chart-legend" });
    this.element = h("figure", { class: "chart" },
      h("figcaption", { class: "chart-head" }, h("h3", null, title), this.legend), this.plot);
    this.plot.onpointermove = (event) => this.hover(event.offsetX);
    this.plot.onpointerdown = (event) => this.hover(event.offsetX);
    this.plot.onpointerleave = () => this.leave();
    this.plot.onblur = () => this.leave();
    this.plot.onkeydown = (event) => this.step_by(event);
    new ResizeObserver(([entry]) => {
      this.width = Math.round(entry.contentRect.width);
      this.draw();
    }).observe(this.plot);
  }

  /** points: [{ at_ms, [key]: number or null }], the oldest first; shown from `fromMs` to `toMs`. */
  update(points, fromMs, toMs) {
    Object.assign(this, { points: points.filter((point) => point.at_ms >= fromMs), fromMs, toMs });
    this.draw();
  }

  hover(x) {
    const at = this.fromMs + ((x - PAD.left) / this.innerWidth()) * (this.toMs - this.fromMs);
    let best = null;
    this.points.forEach((point, index) => {
      if (best === null || Math.abs(point.at_ms - at) < Math.abs(this.points[best].at_ms - at)) best = index;
    });
    this.hovered = best;
    this.draw();
  }

  leave() {
    this.hovered = null;
    this.draw();
  }

  step_by(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !this.points.length) return;
    event.preventDefault();
    const from = this.hovered ?? this.points.length - (by < 0 ? 0 : 1);
    this.hovered = Math.min(this.points.length - 1, Math.max(0, from + by));
    this.draw();
    this.plot.setAttribute("aria-label", `${this.title}, ${this.describe(this.points[this.hovered])}`);
  }

  innerWidth() {
    return Math.max(1, this.width - PAD.left - PAD.right);
  }

  describe(point) {
    const values = this.series.map(({ name, key }) => `${name} ${this.tell(point[key])}`);
    return `${clock(point.at_ms, true)}: ${values.join(", ")}`;
  }

  tell(value) {
    return value === null || value === undefined ? NOTHING : this.format(value);
  }

  draw() {
    const shown = this.hovered !== null ? this.points[this.hovered] : this.points[this.points.length - 1];
    this.drawLegend(shown);
    if (!this.width) return;
    const values = this.points.flatMap((point) => this.series.map(({ key }) => point[key] ?? 0));
    const top = niceCeiling(Math.max(this.maximum, ...values, 0));
    const inner = HEIGHT - PAD.top - PAD.bottom;
    const x = (atMs) => PAD.left + ((atMs - this.fromMs) / (this.toMs - this.fromMs)) * this.innerWidth();
    const y = (value) => PAD.top + inner * (1 - value / top);
    const drawing = s("svg", { width: this.width, height: HEIGHT, "aria-hidden": "true" },
      [0, 0.5, 1].map((part) => s("g", { class: "chart-grid" },
        s("line", { x1: PAD.left, x2: this.width - PAD.right, y1: y(top * part), y2: y(top * part) }),
        s("text", { x: PAD.left - 8, y: y(top * part) + 4, "text-anchor": "end" }, this.format(top * part)))),
      this.ticks().map((atMs, index, all) => s("text", {
        class: "chart-time", x: x(atMs), y: HEIGHT - 5,
        "text-anchor": index === 0 ? "start" : index === all.length - 1 ? "end" : "middle",
      }, index === all.length - 1 && this.endsNow() ? "now" : clock(atMs, this.toMs - this.fromMs < 120_000))),
      this.series.map((series) => this.drawSeries(series, x, y)),
      this.points.length === 0 && s("text", { class: "chart-empty", x: PAD.left + this.innerWidth() / 2, y: HEIGHT / 2,
        "text-anchor": "middle" }, "Nothing yet"),
      this.hovered !== null && shown && s("line", { class: "chart-cross", x1: x(shown.at_ms), x2: x(shown.at_ms),
        y1: PAD.top, y2: HEIGHT - PAD.bottom }));
    this.plot.replaceChildren(drawing);
  }

  drawSeries({ key, tone, dashed, filled }, x, y) {
    const runs = [];
    let run = [];
    for (const point of this.points) {
      const value = point[key];
      if (value === null || value === undefined) {
        if (run.length) runs.push(run);
        run = [];
      } else run.push([x(point.at_ms), y(value)]);
    }
    if (run.length) runs.push(run);
    return s("g", { class: `tone-${tone}` }, runs.map((known) => {
      const path = linePath(known, this.step);
      const [first, last] = [known[0][0], known[known.length - 1][0]];
      return [
        filled && s("path", { class: "chart-area", d: `${path}L${last},${y(0)}L${first},${y(0)}Z` }),
        s("path", { class: dashed ? "chart-line is-dashed" : "chart-line", d: path }),
        known.length === 1 && s("circle", { class: "chart-dot", cx: first, cy: known[0][1], r: 2.5 }),
      ];
    }));
  }

  drawLegend(shown) {
    const items = this.series.map(({ name, key, tone, dashed }) => h("span", { class: `legend-item tone-${tone}` },
      s("svg", { class: "legend-mark", width: 16, height: 8, "aria-hidden": "true" },
        s("line", { class: dashed ? "chart-line is-dashed" : "chart-line", x1: 0, x2: 16, y1: 4, y2: 4 })),
      `${name} `, h("b", null, this.tell(shown?.[key]))));
    this.legend.replaceChildren(...items,
      this.hovered !== null && shown ? h("span", { class: "legend-time" }, clock(shown.at_ms, true)) : "");
    if (this.hovered === null && shown) {
      this.plot.setAttribute("aria-label", `${this.title}, newest values: ${this.describe(shown)}`);
    }
  }

  endsNow() {
    return Math.abs(this.toMs - serverNow()) < 5000;
  }

  ticks() {
    const parts = this.width < 480 ? 2 : 4;
    return Array.from({ length: parts + 1 }, (_, part) => this.fromMs + ((this.toMs - this.fromMs) * part) / parts);
  }
}

function linePath(points, isStep) {
  return points.map(([px, py], index) => {
    if (index === 0) return `M${px.toFixed(1)},${py.toFixed(1)}`;
    return (isStep ? `H${px.toFixed(1)}` : "") + `L${px.toFixed(1)},${py.toFixed(1)}`;
  }).join("");
}

/** The next larger round number. */
export function niceCeiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 4, 5, 10].find((candidate) => candidate * power >= value * 1.02);
  return (step ?? 20) * power;
}

/** A line chart of the size of a word. */
export function sparkline(values, label, isStep = false) {
  const top = Math.max(...values, 1);
  const points = values.map((value, index) => [(index / Math.max(1, values.length - 1)) * 100, 22 - (value / top) * 20]);
  return s("svg", { class: "spark tone-1", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label },
    points.length > 1 && s("path", { class: "chart-area", d: `${linePath(points, isStep)}L100,24L0,24Z` }),
    points.length > 1 && s("path", { class: "chart-line", d: linePath(points, isStep) }));
}
