"use strict";
const COLUMNS = [
  { key: "rank", title: "Rank", value: (p) => p.order, show: (p) => rankCell(p), kind: "number" },
  { key: "evictor", title: "Evictor", value: (p) => evictorOf(p.row), show: (p) => evictorCell(p.row) },
  { key: "gate", title: "Gate", value: (p) => gateOf(p.row), show: (p) => [name(gateOf(p.row))], wide: true },
  { key: "budget", title: "Budget", show: (p) => [String(p.row.budget)], kind: "number", wide: true },
  { key: "kept_kv", title: "Kept KV", kind: "number" },
  { key: "correct", title: "Correct", kind: "number", best: "high" },
  { key: "harm", title: "Harm", kind: "number" },
  { key: "delta", title: "Δ to plain", kind: "number", best: "high", show: (p) => estimate(p.row, "delta", signed) },
  { key: "open", title: "Gate open", kind: "number", minor: true },
  { key: "rho", title: "ρ", kind: "number", minor: true, best: "high" },
  { key: "auc_drop", title: "AUC of D", kind: "number", minor: true, best: "high" },
];
const USUAL = ["rank", "evictor", "gate", "budget", "kept_kv", "correct", "harm"];
const LETTERS = { "τ": "tau", "δ": "delta", "ρ": "rho" };
const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/;
/* Columns whose values are one name, so that a part of it is another. */
const NAMES = ["evictor", "gate", "tau_variant", "granularity"];
const state = { group: 0, sort: "rank", down: false, opened: new Set() };

/* A rank says something among rows of about the same kept KV alone. */
function rankCell(place) {
  if (state.sort === "rank" || place.rank == null) return [place.shown];
  return [place.shown, el("small", {}, "kept KV ", el("span", { class: "whole" }, place.kept))];
}

function evictorCell(row) {
  const also = [row.granularity, row.score_norm === "none" ? null : `norm ${row.score_norm}`].filter(Boolean);
  return [name(evictorOf(row)), " ",
    row.source === "published" && el("span", { class: "tag published" }, "published"),
    row.demonstration && el("span", { class: "tag" }, "demonstration"),
    row.evictor !== "none" && el("small", {}, also.join(", ")),
    // On a narrow screen this stands for two columns.
    el("small", { class: "narrow" }, name(gateOf(row)), `, budget ${row.budget}`)].filter(Boolean);
}

const valueOf = (column, place) => (column.value ? column.value(place) : place.row[column.key]);

function placesOf(group) {
  let order = 0;
  return group.bins.flatMap((bin, i) => bin.places.map(([id, shown, rank]) => ({
    row: data.rows[id], tasks: data.tasks[id] ?? [], id, shown, rank, bin: i, kept: bin.label, order: order++,
  })));
}

/* Whether a text holds a word that is not a part of a longer word or number. */
function holdsWhole(text, word) {
  const escaped = word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
  return new RegExp(`(?<![\\p{L}\\p{N}_.])${escaped}(?![\\p{L}\\p{N}_]|\\.\\d)`, "u").test(text);
}

/* Numbers are meant as they are shown, or as they are. */
function isValue(key, value, wanted) {
  if (value == null) return false;
  if (typeof value === "number") {
    return [value, Number(value.toFixed(3)), Number(value.toPrecision(3))].includes(Number(wanted));
  }
  const text = String(value).toLowerCase();
  return text === wanted || (!NAMES.includes(key) && holdsWhole(text, wanted));
}

/* A row's fit to one lower-case word: NAME=VALUE of a column or in its command, a number, a text. */
function fitsWord(row, text, word) {
  const [, given, wanted] = word.match(/^([^=]+)=(.+)$/) ?? [];
  if (!given) return NUMBER.test(word) ? holdsWhole(text, word) : text.includes(word);
  const key = LETTERS[given] ?? given.replace("-", "_");
  if (!(key in data.meanings)) return holdsWhole(text, word);
  return isValue(key, row[key], wanted) || (key === "tau" && isValue("tau_variant", row.tau_variant, wanted));
}

function found(row, words) {
  const text = [evictorOf(row), row.granularity, gateOf(row), row.budget, row.command, row.date, row.tasks]
    .join(" ").toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => fitsWord(row, text, word));
}

function fits(place) {
  const [evictor, gate, words] = [byId("evictor").value, byId("gate").value, byId("find").value];
  return (!evictor || evictorOf(place.row) === evictor) && (!gate || place.row.gate === gate)
    && found(place.row, words);
}

function sorted(places) {
  const column = COLUMNS.find((one) => one.key === state.sort);
  const way = state.down ? -1 : 1;
  return places.slice().sort((a, b) => {
    const [one, other] = [valueOf(column, a), valueOf(column, b)];
    // What is not known comes last, whichever way.
    if (one == null || other == null) return (one == null) - (other == null) || a.order - b.order;
    const by = typeof one === "number" ? one - other : String(one).localeCompare(String(other));
    return way * by || a.order - b.order;
  });
}

/* Columns that say nothing of a whole group are left out. */
const columnsOf = (places) => COLUMNS.filter((column) => USUAL.includes(column.key)
  || places.some((place) => valueOf(column, place) != null));

const classOfColumn = (column) =>
  [`c-${column.key}`, column.kind, column.minor && "minor", column.wide && "wide"].filter(Boolean).join(" ");

function heading(column) {
  const current = state.sort === column.key;
  const button = el("button", { type: "button" }, column.title);
  button.addEventListener("click", () => {
    state.down = current ? !state.down : column.best === "high";
    state.sort = column.key;
    render();
    byId("table").querySelector(`th[data-key="${column.key}"] > button`).focus();
  });
  return el("th", {
    scope: "col", "data-key": column.key, title: data.meanings[column.key],
    class: classOfColumn(column),
    "aria-sort": current ? (state.down ? "descending" : "ascending") : "none",
  }, button);
}

function rowsOf(place, columns) {
  const isOpen = state.opened.has(place.id);
  const opener = el("button", {
    type: "button", class: "opener", "aria-expanded": String(isOpen), "aria-controls": `d-${place.id}`,
    "aria-label": `Details of ${isolated(evictorOf(place.row))}, gate ${gateOf(place.row)}, budget ${place.row.budget}`,
  }, isOpen ? "−" : "+");
  const inside = el("tr", { id: `d-${place.id}`, class: "inside", hidden: !isOpen });
  const fill = () => inside.replaceChildren(el("td", { colspan: columns.length + 1 },
    el("div", { class: "detail" }, ...details(place))));
  if (isOpen) fill();
  opener.addEventListener("click", () => {
    const open = !state.opened.delete(place.id);
    if (open) { state.opened.add(place.id); fill(); }
    inside.hidden = !open;
    opener.setAttribute("aria-expanded", String(open));
    opener.textContent = open ? "−" : "+";
  });
  const cells = columns.map((column) => el("td", { class: classOfColumn(column) }, ...(column.show ? column.show(place) : estimate(place.row, column.key))));
  return [el("tr", { "data-row": place.id }, el("td", {}, opener), ...cells), inside];
}

function command(row) {
  if (!row.command) return [];
  const status = el("span", { role: "status", class: "facts" });
  const text = el("code", { dir: "ltr" }, row.command);
  const button = el("button", { type: "button", class: "copy" }, "Copy command");
  button.addEventListener("click", async () => {
    let done = false;
    try {
      await navigator.clipboard.writeText(row.command);
      done = true;
    } catch {
      getSelection().selectAllChildren(text);
      done = document.execCommand("copy");
    }
    status.textContent = done ? " Copied." : " Marked; copy it with the keyboard.";
  });
  return [el("h3", {}, "The command that gives this row"), el("pre", {}, text), button, status];
}

function taskTable(place) {
  if (!place.tasks.length) return [];
  const headings = ["Task", "Class here", "n", "Correct", "Full cache", "Δ", "Harm", "ρ", "Open", "Kept KV", "Mean D"];
  const lines = place.tasks.map((task) => [[name(task.task)], task.class ?? "–", String(task.n),
    estimate(task, "correct"), task.full_correct, [task.delta == null ? "–" : signed(task.delta)],
    estimate(task, "harm"), task.rho, task.open, task.kept_kv, task.drop]);
  return [el("h3", {}, "By task"), el("div", { class: "inner" }, plainTable(headings, lines, 2))];
}

function details(place) {
  const { row } = place;
  const facts = data.facts.filter((key) => row[key] != null && row[key] !== "").map((key) =>
    el("div", {}, el("dt", { title: data.meanings[key] }, key), el("dd", {}, name(row[key]),
      interval(row, key) ? ` (${interval(row, key)})` : "")));
  return [
    row.source === "published" && el("p", { class: "note" }, data.published_note),
    row.where && el("p", { class: "facts" }, "Source: ", name(row.where)),
    row.demonstration && el("p", { class: "note" }, "Demonstration: ", name(row.why ?? "")),
    ...command(row), ...taskTable(place), el("h3", {}, "All that is known of it"), el("dl", {}, ...facts),
  ].filter(Boolean);
}

function bodies(places, group, columns) {
  const rows = (place) => rowsOf(place, columns);
  if (state.sort !== "rank") return [el("tbody", {}, ...sorted(places).flatMap(rows))];
  const order = state.down ? group.bins.map((_, i) => i).reverse() : group.bins.map((_, i) => i);
  return order.map((i) => [group.bins[i], sorted(places.filter((place) => place.bin === i))])
    .filter(([, own]) => own.length)
    .map(([bin, own]) => el("tbody", {},
      el("tr", { class: "bin" }, el("th", { colspan: columns.length + 1, scope: "rowgroup" }, `Kept KV ${bin.label}`)),
      ...own.flatMap(rows)));
}

function options(select, values, first, chosen = "") {
  select.replaceChildren(...(first ? [el("option", { value: "" }, first)] : []),
    ...values.map((value) => el("option", { value, selected: value === chosen }, value)));
}

function chooseGroup(index) {
  state.group = index;
  const group = data.groups[index];
  const places = placesOf(group);
  const distinct = (of) => [...new Set(places.map(of))].sort((a, b) => a.localeCompare(b));
  options(byId("evictor"), distinct((p) => evictorOf(p.row)), "all");
  options(byId("gate"), distinct((p) => p.row.gate), "all");
  const budgets = [...new Set(places.filter((p) => p.tasks.some((t) => t.harm != null) && p.row.budget < 1)
    .map((p) => p.row.budget))].sort((a, b) => a - b);
  options(byId("harm-budget"), budgets.map(String));
  byId("harm-budget").parentElement.hidden = budgets.length === 0;
  byId("group-title").replaceChildren(name(group.name), group.rest);
  byId("group-note").hidden = !group.note;
  byId("group-note").replaceChildren(name(group.note));
  byId("group-facts").replaceChildren(...group.facts.flatMap(([what, text], i) => [i ? " · " : "", `${what}: `, name(text)]));
  render();
}

function render() {
  const group = data.groups[state.group];
  const every = placesOf(group);
  const places = every.filter(fits);
  const columns = columnsOf(every);
  const table = byId("table");
  table.tHead.replaceChildren(el("tr", {}, el("th", { scope: "col" }, el("span", {}, "More")), ...columns.map(heading)));
  for (const body of [...table.tBodies]) body.remove();
  table.append(...bodies(places, group, columns));
  byId("status").textContent = `${places.length} of ${every.length} rows`;
  drawFrontier(places);
  drawHarm(places, every, Number(byId("harm-budget").value));
}

function theme(choice) {
  const next = { auto: "dark", dark: "light", light: "auto" };
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  const button = byId("theme");
  button.textContent = `Colours: ${choice}`;
  button.onclick = () => {
    try { localStorage.setItem("page-bench-theme", next[choice]); } catch { /* not allowed here */ }
    theme(next[choice]);
  };
}

function start() {
  let chosen = null;
  try { chosen = localStorage.getItem("page-bench-theme"); } catch { /* not allowed here */ }
  theme(["dark", "light"].includes(chosen) ? chosen : "auto");
  const select = byId("group");
  for (const kind of [...new Set(data.groups.map((group) => group.kind))]) {
    select.append(el("optgroup", { label: kind }, ...data.groups.flatMap((group, i) =>
      group.kind === kind ? [el("option", { value: i }, isolated(group.name) + group.rest)] : [])));
  }
  if (!data.groups.length) {
    byId("status").textContent = "There are no rows yet.";
    return;
  }
  select.addEventListener("change", () => { state.opened.clear(); byId("find").value = ""; chooseGroup(Number(select.value)); });
  for (const id of ["evictor", "gate", "harm-budget"]) byId(id).addEventListener("change", render);
  byId("find").addEventListener("input", render);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("controls").addEventListener("reset", (event) => {
    event.preventDefault();
    for (const id of ["evictor", "gate", "find"]) byId(id).value = "";
    render();
  });
  // The largest of the first kind is where a reader begins.
  const size = (group) => group.bins.reduce((sum, bin) => sum + bin.places.length, 0);
  const first = data.groups.filter((group) => group.kind === data.groups[0].kind);
  const largest = data.groups.indexOf(first.reduce((a, b) => (size(b) > size(a) ? b : a)));
  const wanted = data.groups.findIndex((group) => group.bins.some((bin) =>
    bin.places.some(([id]) => location.hash === `#${id}`)));
  if (wanted >= 0) state.opened.add(location.hash.slice(1));
  select.value = String(wanted >= 0 ? wanted : largest);
  chooseGroup(Number(select.value));
  if (wanted >= 0) document.querySelector(`[data-row="${location.hash.slice(1)}"]`).scrollIntoView();
}

start();
