// The second tab: what the model is, how good, and how its labels are distributed.

import { element, make } from "./api.js";

const whole = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));
const bytes = (value) => {
  const units = ["B", "kB", "MB", "GB"];
  const power = Math.min(3, Math.floor(Math.log10(Math.max(value, 1)) / 3));
  return `${(value / 1000 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
};
const NAMES = {
  precision: "Precision", recall: "Recall", ndcg: "nDCG", f1: "F1", micro_f1: "micro-F1", macro_f1: "macro-F1",
  coverage: "Labels covered",
};

const KINDS = { SparseModel: "one-vs-all", LabelTree: "label tree", Ensemble: "ensemble", Neighbours: "neighbours" };

function list(target, pairs) {
  element(target).replaceChildren(...pairs.flatMap(([name, value]) =>
    [make("dt", { textContent: name }), make("dd", { textContent: value })]));
}

export function showModel(model) {
  const report = model.fit_report ?? {};
  list("facts", [
    ["Labels", whole(model.labels)],
    ["Terms", whole(model.features)],
    ...(model.weights === null ? [] : [["Weights", whole(model.weights)]]),
    ["In memory", bytes(model.bytes)],
    ["On disk", bytes(model.disk_bytes)],
    ["Kind", KINDS[model.kind] ?? model.kind],
    ["Probabilities", model.probabilities ? "yes, fitted" : "no, scores"],
    ...(model.text_columns.some(Boolean) ? [["Text columns", model.text_columns.join(", ")]] : []),
    ["Trained", model.modified.replace("T", " ").replace("+00:00", " UTC")],
    ...Object.entries({
      rows: "Rows given", trained: "Rows trained on", held_out: "Rows for probabilities", empty_texts: "Rows without text",
      unlabelled_rows: "Rows without labels", labels_without_rows: "Labels not learned",
    }).filter(([key]) => report[key] !== undefined).map(([key, name]) => [name, whole(report[key])]),
    ...(model.problem ? [["Problem", model.problem]] : []),
  ]);
  showMeasures(model.validation);
  showReliability(model.validation?.reliability);
  showFrequencies(model.label_frequencies);
  element("description").replaceChildren();
}

function note(target, words) {
  element(target).replaceChildren(make("p", { className: "hint", textContent: words }));
}

function showMeasures(validation) {
  if (!validation) {
    note("measures", "None are kept with this model: train it with --valid to see them here.");
    return;
  }
  const shown = Object.keys(NAMES).filter((name) => Array.isArray(validation.metrics[name]));
  const cell = (value) => make("td", { textContent: (100 * value).toFixed(1) });
  element("measures").replaceChildren(make("table", {},
    make("caption", { textContent: `In %, on ${whole(validation.rows)} rows that the model was not trained on` }),
    make("thead", {}, make("tr", {}, make("th", { textContent: "At most", scope: "col" }),
      ...validation.k.map((k) => make("th", { textContent: `${k} label${k > 1 ? "s" : ""}`, scope: "col" })))),
    make("tbody", {}, ...shown.map((name) => make("tr", {},
      make("th", { textContent: NAMES[name], scope: "row" }), ...validation.metrics[name].map(cell))))));
}

function showReliability(bins) {
  const points = (bins ?? []).filter(([, , count]) => count >= 5);
  if (!points.length) {
    note("reliability", "Known for models with probabilities that were trained with --valid.");
    return;
  }
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((value) => [value, String(value)]);
  const table = points.map(([given, right]) => `${given.toFixed(2)}: ${right.toFixed(2)}`).join(", ");
  element("reliability").replaceChildren(plot({
    points, ticksX: ticks, ticksY: ticks, nameX: "probability given", nameY: "share that is right",
    label: `Share that is right by probability given: ${table}`, diagonal: true, dots: true,
  }));
}

function showFrequencies(pairs) {
  const points = (pairs ?? []).filter(([, rows]) => rows > 0).map((pair) => pair.map(Math.log10));
  if (!points.length) {
    note("distribution", "The model does not know the frequencies of its labels.");
    return;
  }
  const powers = (values) => [...Array(Math.floor(Math.max(...values, 1)) + 1).keys()]
    .map((power) => [power, (10 ** power).toLocaleString("en")]);
  const [first, last] = [pairs[0], pairs[pairs.length - 1]];
  element("distribution").replaceChildren(plot({
    points, ticksX: powers(points.map((point) => point[0])), ticksY: powers(points.map((point) => point[1])),
    nameX: "rank of the label", nameY: "training rows", dots: false,
    label: `The most frequent label has ${whole(first[1])} rows, the one of rank ${whole(last[0])} has ${whole(last[1])}`,
  }));
}

function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// A curve on axes that begin at 0.
function plot({ points, ticksX, ticksY, nameX, nameY, label, diagonal = false, dots }) {
  const [width, height, left, right, top, bottom] = [420, 260, 52, 14, 22, 38];
  const ends = (ticks, axis) => Math.max(ticks[ticks.length - 1][0], ...points.map((point) => point[axis]));
  const [endX, endY] = [ends(ticksX, 0), ends(ticksY, 1)];
  const x = (value) => left + (value / endX) * (width - left - right);
  const y = (value) => height - bottom - (value / endY) * (height - top - bottom);
  const made = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  made.append(svg("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - right}` }));
  for (const [value, name] of ticksX) {
    made.append(svg("text", { x: x(value), y: height - bottom + 15, "text-anchor": "middle" }, name));
  }
  for (const [value, name] of ticksY) {
    made.append(svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, name));
  }
  made.append(svg("text", { x: width - right, y: height - 6, "text-anchor": "end" }, nameX));
  made.append(svg("text", { x: 4, y: 12 }, nameY));
  if (diagonal) made.append(svg("path", { class: "axis", d: `M${x(0)} ${y(0)}L${x(endX)} ${y(endY)}` }));
  made.append(svg("path", { class: "line", d: `M${points.map((point) => `${x(point[0])} ${y(point[1])}`).join("L")}` }));
  if (dots) made.append(...points.map((point) => svg("circle", { class: "dot", cx: x(point[0]), cy: y(point[1]), r: 3.5 })));
  return made;
}

export function showDescription(found) {
  const pairs = (values) => values.map(([name, value]) => `${name} ${value.toFixed(2)}`).join(", ") || "none";
  list("description", [
    ["Label", found.label],
    ["Training rows", whole(found.rows)],
    ["Terms for it", pairs(found.positive)],
    ["Terms against it", pairs(found.negative)],
    ["Labels like it", pairs(found.similar)],
  ]);
}
