/* The pipeline as a graph: boxes for stages, lines for what goes between them. The server says where they go. */

import { short } from "./samples.js";
import { cutText, svg } from "./svg.js";

/* Pixels. */
const HEIGHT = 84, MARGIN = 4;
const ALONG = { width: 150, least: 44, unit: 84 };
const DOWN = { widest: 168, between: 34 };
/* A box less wide has no room for two numbers in words. */
const NARROW = 130;
const SPARK = { height: 14, seconds: 60 };

/** Draws one pipeline. */
export class Diagram {
  element = svg("svg", { class: "inside-graph", role: "img" });
  #shape = null;
  #boxes = new Map();
  #width = 0;

  /** The diagram of another pipeline. */
  set shape(shape) {
    this.#shape = shape;
    const stages = shape.stages.map(({ name }) => name).join(", ");
    this.element.setAttribute("aria-label", `The stages of ${shape.name}: ${stages}. The table below has their numbers.`);
    this.#draw();
  }

  /** Fits it to a width in pixels. */
  fit(width) {
    if (Math.round(width) === this.#width) return;
    this.#width = Math.round(width);
    this.#draw();
  }

  /**
   * Shows the present.
   *
   * @param samples of pipeline/load.
   * @param at the stages that the page's own request is in.
   * @param been those that it has left.
   */
  show(samples, at, been) {
    const stages = samples.last?.stages ?? {};
    for (const [name, box] of this.#boxes) {
      const now = stages[name];
      const isHere = at.has(name), works = Boolean(now?.running);
      const state = !isHere ? (been.has(name) ? "been" : "") : works || !now ? "works" : "waits";
      box.group.setAttribute("class", `stage ${state} ${now?.down ? "down" : ""} ${box.isNarrow ? "narrow" : ""}`);
      box.live.textContent = isHere ? { works: "● at work", waits: "◌ waits" }[state] : described(now, box.isNarrow);
      const most = Math.max(1, ...samples.series((each) => each.stages[name]?.held).map(([, held]) => held));
      const points = samples.series((each) => each.stages[name]?.held).map(([ago, held]) => {
        const x = box.spark.x + box.spark.width * (1 - ago / SPARK.seconds);
        return `${x.toFixed(1)},${(box.spark.y + SPARK.height * (1 - held / most)).toFixed(1)}`;
      });
      box.line.setAttribute("points", points.join(" "));
    }
  }

  #draw() {
    const shape = this.#shape;
    /* The pipeline may be known before there is room to draw it, and the other way round. */
    if (!shape || !this.#width) return;
    const isAlong = shape.layers * ALONG.width + (shape.layers - 1) * ALONG.least + 2 * MARGIN <= this.#width;
    const place = isAlong ? along(shape, this.#width) : down(shape, this.#width);
    this.element.setAttribute("viewBox", `0 0 ${place.width} ${place.height}`);
    this.element.setAttribute("width", place.width);
    this.element.setAttribute("height", place.height);
    this.#boxes.clear();
    const tip = svg("marker", { id: "inside-tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7,
      orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8z" }));
    const edges = shape.edges.map((edge) => svg("path", {
      class: edge.payload ? "edge" : "edge stream", d: curve(edge.path, place), "marker-end": "url(#inside-tip)",
    }, svg("title", {}, told(edge))));
    const boxes = shape.stages.map((stage) => this.#box(stage, place));
    this.element.replaceChildren(svg("defs", {}, tip), ...edges, ...boxes);
  }

  #box(stage, place) {
    const { x, y } = place.at(stage.layer, stage.across), left = x - place.box / 2, top = y - HEIGHT / 2;
    const inner = place.box - 8, isNarrow = place.box < NARROW;
    const live = svg("text", { class: "live", x, y: top + 54 });
    const spark = { x: left + 8, y: top + HEIGHT - 8 - SPARK.height, width: place.box - 16 };
    const line = svg("polyline", { class: "spark" });
    const where = [stage.process === stage.name ? "" : stage.process, stage.device, stage.replicas && `× ${stage.replicas}`];
    const group = svg("g", { class: isNarrow ? "stage narrow" : "stage" },
      svg("rect", { x: left, y: top, width: place.box, height: HEIGHT, rx: 10, class: stage.entry || stage.terminal ? "outer" : "inner" }),
      cutText(stage.name, inner, isNarrow ? 7.4 : 8.4, { class: "name", x, y: top + 20 }),
      cutText(where.filter(Boolean).join(" · "), inner, 6.2, { class: "where", x, y: top + 36 }),
      live, line);
    this.#boxes.set(stage.name, { group, live, line, spark, isNarrow });
    return group;
  }
}

/** What an edge carries, in words. */
export function told(edge) {
  const what = [edge.payload && "results", edge.stream && "chunks"].filter(Boolean).join(" and ");
  return `${edge.source} → ${edge.target}: ${what} over ${edge.transport}`;
}

function described(now, isNarrow) {
  if (!now) return "";
  if (now.down) return now.down === now.instances ? "down" : `${now.down} of ${now.instances} down`;
  if (isNarrow && now.running && now.queued) return `${short(now.running)} + ${short(now.queued)} queued`;
  const parts = [now.running && `${short(now.running)} at work`, now.queued && `${short(now.queued)} queued`];
  return parts.filter(Boolean).join(", ") || (now.held ? `${short(now.held)} here` : "idle");
}

/* From left to right. */
function along(shape, width) {
  const between = Math.min(110, (width - 2 * MARGIN - shape.layers * ALONG.width) / Math.max(1, shape.layers - 1));
  const left = (width - shape.layers * ALONG.width - (shape.layers - 1) * between) / 2;
  return {
    width, height: shape.width * ALONG.unit + 2 * MARGIN, box: ALONG.width, isAlong: true, half: ALONG.width / 2,
    at: (layer, across) => ({ x: left + layer * (ALONG.width + between) + ALONG.width / 2, y: MARGIN + across * ALONG.unit }),
  };
}

/* From top to bottom. */
function down(shape, width) {
  const unit = Math.min(DOWN.widest, (width - 2 * MARGIN) / shape.width);
  const left = (width - shape.width * unit) / 2;
  return {
    width, height: shape.layers * HEIGHT + (shape.layers - 1) * DOWN.between + 2 * MARGIN, box: unit, isAlong: false,
    half: HEIGHT / 2,
    at: (layer, across) => ({ x: left + across * unit, y: MARGIN + layer * (HEIGHT + DOWN.between) + HEIGHT / 2 }),
  };
}

/* A curve between two layers, and a straight line where it passes through one. */
function curve(path, place) {
  const step = Math.sign(path.at(-1)[0] - path[0][0]) * place.half;
  const parts = [];
  path.forEach(([layer, across], index) => {
    const { x, y } = place.at(layer, across);
    const near = place.isAlong ? [x - step, y] : [x, y - step], far = place.isAlong ? [x + step, y] : [x, y + step];
    if (index > 0) {
      const [x1, y1] = parts.at(-1).end, [x2, y2] = near;
      const bend = place.isAlong ? `${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2}` : `${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2}`;
      parts.push({ d: `C${bend} ${x2} ${y2}`, end: near });
    }
    if (index < path.length - 1) parts.push({ d: `${index ? "L" : "M"}${far[0]} ${far[1]}`, end: far });
  });
  return parts.map(({ d }) => d).join("");
}
