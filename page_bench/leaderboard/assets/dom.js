"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

/* Every text goes in as text: names and commands are data, never markup. */
function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

/* A name keeps its own writing direction to itself. */
const name = (text) => el("bdi", {}, String(text));

/* The same where there can be no element. */
const isolated = (text) => `\u2068${text}\u2069`;

function svg(kind, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const number = (value, digits = 3) =>
  value == null ? "–" : Number(value).toFixed(digits).replace("-", "−");

const signed = (value) => (value > 0 ? "+" : "") + number(value);

function interval(row, key) {
  const [low, high] = [row[`${key}_low`], row[`${key}_high`]];
  if (low == null || high == null) return null;
  // Only a cache that settings and length alone decide has no spread.
  if (low === high) return "exact";
  const digits = [3, 4, 5, 6].find((d) => number(low, d) !== number(high, d));
  return `${number(low, digits)} to ${number(high, digits)}`;
}

function estimate(row, key, show = number) {
  if (row[key] == null) return ["–"];
  const range = interval(row, key);
  return [show(row[key]), range && el("small", {}, range)];
}

/* Options that are not at the evictor's usual setting are told by the build. */
const evictorOf = (row) => row.evictor + (row.options ? ` ${row.options}` : "");

function gateOf(row) {
  const rule = row.tau_variant && row.tau_variant !== "number" ? ` ${row.tau_variant}` : "";
  return row.gate + rule + (row.tau == null ? "" : ` τ=${Number(Number(row.tau).toPrecision(3))}`);
}

/* Columns from number `from` on hold numbers. */
function plainTable(headings, lines, from) {
  const kind = (i) => (i >= from ? "number" : "");
  const cell = (value, i) => {
    const inside = Array.isArray(value) ? value : [typeof value === "number" ? number(value) : value ?? "–"];
    const [tag, also] = i === 0 ? ["th", { scope: "row" }] : ["td", {}];
    return el(tag, { class: kind(i), ...also }, ...inside);
  };
  return el("table", {},
    el("thead", {}, el("tr", {}, ...headings.map((text, i) => el("th", { scope: "col", class: kind(i) }, text)))),
    el("tbody", {}, ...lines.map((line) => el("tr", {}, ...line.map(cell)))));
}
