"use strict";
const MARKS = {
  open: (x, y) => svg("rect", { x: x - 4, y: y - 4, width: 8, height: 8 }),
  closed: (x, y) => svg("path", { d: `M${x} ${y - 6}l6 6-6 6-6-6z` }),
  gated: (x, y) => svg("circle", { cx: x, cy: y, r: 4.5 }),
};
const kind = (row) => (row.gate in MARKS ? row.gate : "gated");
/* On a narrow screen the same letters need a larger share of the drawing. */
const chartWidth = () => (innerWidth < 640 ? 390 : 560);
const readsLabels = (place) => place.rank == null;

/* Plain eviction is hollow and dashed, gated filled: told apart without colour, too. */
function mark(row, colour, x, y) {
  const made = MARKS[kind(row)](x, y);
  made.style.stroke = colour;
  made.style.strokeWidth = "1.8";
  made.style.fill = kind(row) === "open" ? "var(--paper)" : colour;
  return made;
}

function seriesOf(places) {
  const evictors = [...new Set(places.map((p) => evictorOf(p.row)))].filter((e) => e !== "none");
  const colour = new Map(evictors.map((text, i) => [text, `var(--s${i % 6})`]));
  const found = new Map();
  for (const place of places) {
    const key = JSON.stringify([evictorOf(place.row), gateOf({ ...place.row, tau: null })]);
    if (!found.has(key)) {
      const evictor = place.row.gate === "closed" ? null : evictorOf(place.row);
      const gate = `, ${gateOf({ ...place.row, tau: null })}`;
      const label = evictor === null ? "full cache" : isolated(evictor) + gate;
      const named = () => (evictor === null ? [label] : [name(evictor), gate]);
      const own = colour.get(evictorOf(place.row));
      found.set(key, { label, named, colour: place.row.gate === "closed" ? "var(--s6)" : own ?? "var(--s6)", places: [] });
    }
    found.get(key).places.push(place);
  }
  return [...found.values()];
}

function legend(series) {
  return el("ul", { class: "legend" }, ...series.map((one) => {
    const sign = svg("svg", { viewBox: "0 0 16 12", "aria-hidden": "true" });
    sign.append(mark(one.places[0].row, one.colour, 8, 6));
    return el("li", {}, sign, " ", ...one.named());
  }));
}

function line(x1, y1, x2, y2, style) {
  return svg("line", { x1, y1, x2, y2, class: style });
}

function label(x, y, text, attributes = {}) {
  return svg("text", { x, y, ...attributes }, text);
}

function frame(id, width, height, title, description) {
  return svg("svg", { id, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": `${id}-t ${id}-d` },
    svg("title", { id: `${id}-t` }, title), svg("desc", { id: `${id}-d` }, description));
}

function chartData(headings, lines, from) {
  return el("details", { class: "data" }, el("summary", {}, "The same as a table"),
    el("div", {}, plainTable(headings, lines, from)));
}

/* Rows that nothing beats at the same or less cache. */
function frontierOf(places) {
  const known = places.filter((p) => !readsLabels(p)).sort(
    (a, b) => a.row.kept_kv - b.row.kept_kv || b.row.correct - a.row.correct);
  const best = [];
  for (const place of known) {
    if (!best.length || place.row.correct > best[best.length - 1].row.correct) best.push(place);
  }
  return best;
}

function drawFrontier(places) {
  const shown = places.filter((p) => p.row.kept_kv != null && p.row.correct != null);
  const target = byId("frontier");
  if (!shown.length) return target.replaceChildren(el("p", { class: "facts" }, "No row fits."));
  const [width, height, left, right, top, bottom] = [chartWidth(), 380, 50, 14, 12, 46];
  const x = (kept) => left + kept * (width - left - right);
  const y = (share) => height - bottom - share * (height - top - bottom);
  const n = [...new Set(shown.map((p) => p.row.n))].join(", ");
  const chart = frame("frontier-chart", width, height, "Share of right answers against kept KV",
    `${shown.length} rows, n = ${n} each; all numbers stand in the table below.`);
  for (let i = 0; i <= 4; i += 1) {
    const at = i / 4;
    chart.append(line(x(at), y(0), x(at), y(1), "grid"), line(x(0), y(at), x(1), y(at), "grid"),
      label(x(at), y(0) + 18, at.toFixed(2), { "text-anchor": "middle", class: "soft" }),
      label(left - 8, y(at) + 4, at.toFixed(2), { "text-anchor": "end", class: "soft" }));
  }
  chart.append(line(x(0), y(0), x(1), y(0), "axis"), line(x(0), y(0), x(0), y(1), "axis"),
    label(x(0.5), height - 8, "kept KV, share of the full cache, as achieved", { "text-anchor": "middle" }),
    label(0, 0, "correct, share of answers", { "text-anchor": "middle", transform: `translate(12 ${y(0.5)}) rotate(-90)` }));
  const front = frontierOf(shown);
  if (front.length > 1) {
    const path = front.map((p, i) => i === 0 ? `M${x(p.row.kept_kv)} ${y(p.row.correct)}`
      : `H${x(p.row.kept_kv)}V${y(p.row.correct)}`).join("");
    chart.append(svg("path", { d: path, class: "front" }));
  }
  const series = seriesOf(shown);
  for (const one of series) {
    const points = one.places.slice().sort((a, b) => a.row.kept_kv - b.row.kept_kv);
    const path = svg("path", {
      d: points.map((p, i) => `${i ? "L" : "M"}${x(p.row.kept_kv)} ${y(p.row.correct)}`).join(""),
      class: "series",
      "stroke-dasharray": kind(points[0].row) === "open" ? "4 3" : "none",
    });
    path.style.stroke = one.colour;
    chart.append(path);
    for (const { row } of points) {
      if (row.correct_low != null) {
        const bar = line(x(row.kept_kv), y(row.correct_low), x(row.kept_kv), y(row.correct_high), "error");
        bar.style.stroke = one.colour;
        chart.append(bar);
      }
      const dot = mark(row, one.colour, x(row.kept_kv), y(row.correct));
      dot.append(svg("title", {}, `${one.label}, budget ${row.budget}: ${number(row.correct)} at ${number(row.kept_kv)}`));
      chart.append(dot);
    }
  }
  const full = shown.find((p) => p.row.gate === "closed");
  if (full) chart.append(line(x(0), y(full.row.correct), x(1), y(full.row.correct), "full"));
  target.replaceChildren(chart, legend(series),
    el("p", { class: "facts" }, `n = ${n}; bars are 95 % intervals. The wide grey line is the frontier: nothing shown is more often right with as much cache or less.`),
    chartData(["Row", "Budget", "Kept KV", "Correct", "95 % interval", "On the frontier"],
      series.flatMap((one) => one.places.map((p) => [one.named(), String(p.row.budget), p.row.kept_kv,
        p.row.correct, interval(p.row, "correct") ?? "–", front.includes(p) ? "yes" : "no"])), 1));
}

/* The class that plain eviction's intervals speak for, where they do not contradict each other. */
function classOf(places, task) {
  const told = new Set(places.filter((p) => p.row.gate === "open")
    .flatMap((p) => p.tasks).filter((t) => t.task === task && t.class && t.class !== data.undecided)
    .map((t) => t.class));
  return told.size === 1 ? [...told][0] : data.undecided;
}

function drawHarm(places, everyone, budget) {
  const shown = places.filter((p) => p.row.budget === budget && p.tasks.some((t) => t.harm != null));
  const target = byId("harm");
  if (!shown.length) {
    return target.replaceChildren(el("p", { class: "facts" },
      "No harm is known for these rows: it needs the full cache's answer to each input."));
  }
  const tasks = [...new Set(shown.flatMap((p) => p.tasks.map((t) => t.task)))]
    .map((task) => ({ task, of: classOf(everyone, task) }))
    .sort((a, b) => a.of.localeCompare(b.of) || a.task.localeCompare(b.task));
  const series = seriesOf(shown);
  const marks = series.flatMap((one) => one.places.map((place) => ({ ...place, colour: one.colour, label: one.label, named: one.named })));
  const [left, right, top] = [chartWidth() < 500 ? 118 : 150, 16, 6];
  const band = Math.max(30, marks.length * 11 + 8);
  const [width, height] = [chartWidth(), top + band * tasks.length + 44];
  const x = (share) => left + share * (width - left - right);
  const chart = frame("harm-chart", width, height, `Harm by task at budget ${budget}`,
    `${tasks.length} tasks, ${marks.length} rows; all numbers stand in the table below.`);
  tasks.forEach(({ task, of }, i) => {
    const start = top + i * band;
    if (i % 2 === 0) chart.append(svg("rect", { x: 0, y: start, width, height: band, class: "band" }));
    chart.append(label(4, start + band / 2 - 1, task), label(4, start + band / 2 + 13, of, { class: "soft" }));
  });
  for (let i = 0; i <= 4; i += 1) {
    chart.append(line(x(i / 4), top, x(i / 4), height - 44, "grid"),
      label(x(i / 4), height - 28, (i / 4).toFixed(2), { "text-anchor": "middle", class: "soft" }));
  }
  chart.append(label(x(0.5), height - 8, "harm, share of inputs", { "text-anchor": "middle" }));
  const lines = [];
  tasks.forEach(({ task, of }, i) => marks.forEach((one, k) => {
    const own = one.tasks.find((t) => t.task === task);
    if (!own || own.harm == null) return;
    const at = top + i * band + (k + 1) * band / (marks.length + 1);
    if (own.harm_low != null) {
      const bar = line(x(own.harm_low), at, x(own.harm_high), at, "error");
      bar.style.stroke = one.colour;
      chart.append(bar);
    }
    const dot = mark(one.row, one.colour, x(own.harm), at);
    dot.append(svg("title", {}, `${isolated(task)}, ${one.label}: ${number(own.harm)} of ${own.n}`));
    chart.append(dot);
    lines.push([[name(task)], of, one.named(), own.harm, interval(own, "harm") ?? "–", String(own.n)]);
  }));
  target.replaceChildren(chart, legend(series),
    el("p", { class: "facts" }, `Per task n = ${[...new Set(shown.flatMap((p) => p.tasks.map((t) => t.n)))].join(", ")}; bars are 95 % intervals. The class of a task is told by ρ under plain eviction.`),
    chartData(["Task", "Class", "Row", "Harm", "95 % interval", "n"], lines, 3));
}
