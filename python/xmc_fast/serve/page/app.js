// The page: suggestions while typing, why they came, decisions of the user, and whole tables.

import { askForToken, attempt, debounce, download, element, get, make, post } from "./api.js";
import { showDescription, showModel } from "./model.js";
import { tagTable } from "./table.js";

const state = {
  model: null, // facts of the chosen model
  shown: [], // suggestions of the text
  selected: null, // label that is explained
  decisions: new Map(), // label -> accepted (true) or rejected (false), of this text
  kept: [], // [columns of the text, labels], of the chosen model
  running: null, // request that is under way
};

const keptOf = new Map(); // name of a model -> kept texts

const path = (rest = "") => `v1/models/${encodeURIComponent(state.model.name)}${rest}`;
const boxes = () => [...element("texts").querySelectorAll("textarea")];
const text = () => {
  const columns = Object.fromEntries(boxes().map((box) => [box.dataset.column, box.value]));
  return boxes().length > 1 ? columns : boxes()[0].value;
};
const shownText = () => boxes().map((box) => box.value).join("\n");
const isEmpty = () => boxes().every((box) => !box.value.trim());
const decimals = (value) => value.toFixed(3);

async function start() {
  const models = await get("v1/models");
  element("model").replaceChildren(...models.map((model) => new Option(model.name, model.name)));
  await choose(models[0].name);
}

async function choose(name) {
  state.model = await get(`v1/models/${encodeURIComponent(name)}`);
  if (!keptOf.has(name)) keptOf.set(name, []);
  state.kept = keptOf.get(name);
  const old = boxes().map((box) => box.value);
  const columns = state.model.text_columns;
  element("texts").replaceChildren(...columns.flatMap((column, i) => {
    const id = `text-${i}`;
    const box = make("textarea", { id, value: old[i] ?? "", placeholder: "Paste or type a text" });
    box.dataset.column = column;
    if (i < columns.length - 1) box.className = "short";
    box.addEventListener("input", onInput);
    return [make("label", { htmlFor: id, textContent: column || "Text to label" }), box];
  }));
  element("columns").placeholder = columns.filter(Boolean).join(",") || state.model.reading.text?.[0] || "text";
  state.decisions.clear();
  showModel(state.model);
  await suggest();
}

const onInput = debounce(() => {
  if (isEmpty()) state.decisions.clear();
  attempt(suggest);
}, 200);

async function suggest() {
  state.running?.abort();
  state.running = new AbortController();
  if (isEmpty()) {
    state.shown = [];
  } else {
    const request = { text: text(), k: Number(element("k").value), threshold: threshold() };
    try {
      const answer = await post(path("/suggest"), request, state.running.signal);
      state.shown = answer.results[0].suggestions;
    } catch (error) {
      if (error.name !== "AbortError") forget();
      throw error;
    }
  }
  if (!state.shown.some((one) => one.label === state.selected)) state.selected = state.shown[0]?.label ?? null;
  showSuggestions();
  await explain();
}

// Suggestions of another text must not stand beside this one.
function forget() {
  state.shown = [];
  showSuggestions();
  element("status").textContent = "No suggestions.";
  element("why").hidden = true;
}

function threshold() {
  return Number(element("threshold").value) || null;
}

function showSuggestions() {
  const count = state.shown.length;
  const why = threshold() ? "None is that probable." : "The model knows no word of this text.";
  element("status").textContent = isEmpty()
    ? "Suggestions appear while you type."
    : count ? `${count} suggestion${count > 1 ? "s" : ""}${state.model.probabilities ? "" : " with scores"}` : why;
  const largest = state.model.probabilities ? 1 : Math.max(...state.shown.map((one) => Math.abs(one.probability)), 1e-9);
  const focused = document.activeElement?.dataset?.key;
  element("suggestions").replaceChildren(...state.shown.map((one) => line(one, largest)));
  if (focused) document.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  showChosen();
}

function line({ label, probability }, largest) {
  const bar = make("span", { className: "bar", attributes: { "aria-hidden": "true" } });
  bar.style.width = `${Math.max(0, Math.min(100, (100 * probability) / largest))}%`;
  const button = make("button", {
    type: "button", className: "suggestion", onclick: () => select(label),
    attributes: { "aria-pressed": String(label === state.selected), "data-key": `why ${label}` },
  }, bar, make("span", { textContent: label }), make("span", { className: "value", textContent: decimals(probability) }));
  const decision = state.decisions.get(label);
  const item = make("li", {}, button, decide(label, true, "✓", decision), decide(label, false, "✗", decision));
  if (decision === false) item.className = "rejected";
  return item;
}

function decide(label, accept, sign, decision) {
  const name = `${accept ? "Accept" : "Reject"} ${label}`;
  return make("button", {
    type: "button", className: "decide", textContent: sign, title: name,
    onclick: () => {
      if (decision === accept) state.decisions.delete(label);
      else state.decisions.set(label, accept);
      showSuggestions();
    },
    attributes: { "aria-label": name, "aria-pressed": String(decision === accept), "data-key": name },
  });
}

function select(label) {
  state.selected = label;
  showSuggestions();
  attempt(explain);
}

async function explain() {
  const visible = state.selected !== null && state.model.explains;
  element("why").hidden = !visible;
  if (!visible) return;
  const request = { text: text(), label: state.selected, top: 1000 };
  const found = await post(path("/explain"), request, state.running.signal);
  element("why-label").textContent = found.label;
  element("marked").replaceChildren(...marked(shownText(), found.contributions));
  const rows = found.contributions.filter((one) => one.contribution).slice(0, 8).map((one) => [one.term, one.contribution]);
  rows.push(["(bias)", found.bias], ["Score", found.score]);
  element("parts").replaceChildren(...rows.map(([term, value]) =>
    make("tr", {}, make("td", { textContent: term }), make("td", { textContent: signed(value) }))));
}

const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;

// The text in pieces, each marked by the sum of the contributions of the terms that cover it. Places are
// counted in code points, as the server counts them.
function marked(whole, contributions) {
  const characters = Array.from(whole);
  const strength = new Float64Array(characters.length + 1);
  for (const { spans, contribution } of contributions) {
    for (const [from, to] of spans) for (let i = from; i < to; i++) strength[i] += contribution;
  }
  const largest = Math.max(...strength.map(Math.abs), 1e-9);
  const pieces = [];
  for (let from = 0, to = 1; to <= characters.length; to++) {
    if (to < characters.length && strength[to] === strength[from]) continue;
    const piece = characters.slice(from, to).join("");
    const share = strength[from] / largest;
    pieces.push(Math.abs(share) < 0.1 ? piece : make("mark", {
      className: `${share > 0 ? "for" : "against"}${Math.abs(share) < 0.4 ? " weak" : ""}`,
      textContent: piece, title: signed(strength[from]),
    }));
    from = to;
  }
  return pieces;
}

function chosen() {
  return [...state.decisions].filter(([, accepted]) => accepted).map(([label]) => label);
}

function showChosen() {
  element("chosen").replaceChildren(...chosen().map((label) => make("li", {}, label, make("button", {
    type: "button", textContent: "×", attributes: { "aria-label": `Remove ${label}` },
    onclick: () => { state.decisions.delete(label); showSuggestions(); },
  }))));
  element("keep").disabled = !chosen().length || isEmpty();
  element("download").disabled = !state.kept.length;
  element("download").textContent = `Download kept texts (${state.kept.length})`;
}

async function search(query) {
  const found = query ? await get(path(`/labels?limit=12&q=${encodeURIComponent(query)}`)) : [];
  element("found").replaceChildren(...found.map(({ label }) => new Option(label)));
  return found;
}

async function add() {
  const wanted = element("search").value.trim();
  if (!wanted) return;
  const found = await search(wanted);
  const exact = found.find(({ label }) => label === wanted) ?? (found.length === 1 ? found[0] : null);
  if (!exact) throw new Error(`The model has no label “${wanted}”: choose one of the list.`);
  state.decisions.set(exact.label, true);
  element("search").value = "";
  showSuggestions();
}

function keep() {
  state.kept.push([boxes().map((box) => box.value), chosen()]);
  state.decisions.clear();
  for (const box of boxes()) box.value = "";
  boxes()[0].focus();
  attempt(suggest);
}

function downloadKept() {
  const { reading, text_columns: columns } = state.model;
  const quote = (value) => `"${value.replaceAll('"', '""')}"`;
  const names = columns.map((name, i) => name || reading.text?.[i] || "text");
  const rows = state.kept.map(([texts, labels]) => [...texts, labels.join(reading.sep || "|")]);
  const lines = [[...names, reading.label || "labels"], ...rows].map((row) => `${row.map(quote).join(",")}\r\n`);
  download("kept.csv", lines);
}

function setTab(chosenTab) {
  for (const name of ["suggest", "model"]) {
    const tab = element(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === chosenTab));
    tab.tabIndex = name === chosenTab ? 0 : -1;
    element(`panel-${name}`).hidden = name !== chosenTab;
  }
}

for (const name of ["suggest", "model"]) {
  const other = name === "suggest" ? "model" : "suggest";
  element(`tab-${name}`).addEventListener("click", () => setTab(name));
  element(`tab-${name}`).addEventListener("keydown", (event) => {
    if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    setTab(other);
    element(`tab-${other}`).focus();
  });
}
for (const name of ["k", "threshold"]) {
  const again = debounce(() => attempt(suggest), 100);
  element(name).addEventListener("input", (event) => {
    const value = Number(event.target.value);
    element(`${name}-shown`).textContent = name === "k" ? value : value.toFixed(2);
    again();
  });
}
for (const id of ["search", "described"]) {
  const look = debounce(() => attempt(() => search(element(id).value.trim())), 150);
  element(id).addEventListener("input", look);
}
element("search").addEventListener("keydown", (event) => { if (event.key === "Enter") attempt(add); });
element("model").addEventListener("change", (event) => attempt(() => choose(event.target.value)));
element("add").addEventListener("click", () => attempt(add));
element("keep").addEventListener("click", keep);
element("download").addEventListener("click", downloadKept);
element("upload").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(() => tagTable(path("/tag"), { k: element("k").value, threshold: threshold() }));
});
element("describe").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(async () => showDescription(await get(path(`/label?label=${encodeURIComponent(element("described").value)}`))));
});
addEventListener("beforeunload", (event) => { if ([...keptOf.values()].some((kept) => kept.length)) event.preventDefault(); });
askForToken(() => attempt(start));
attempt(start);
