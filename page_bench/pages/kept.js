"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const [L, H, T] = data.shape;
const packed = Uint8Array.from(atob(data.kept), (c) => c.charCodeAt(0));
const stride = Math.ceil(T / 8);
const at = (l, h, t) => (packed[(l * H + h) * stride + (t >> 3)] >> (7 - (t & 7))) & 1;
const el = (id) => document.getElementById(id);
const made = (tag, text, parent) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
};
let layer = -1;
let head = -1;

function shares() {
  const found = new Float32Array(T);
  const layers = layer < 0 ? [...Array(L).keys()] : [layer];
  const heads = head < 0 ? [...Array(H).keys()] : [head];
  for (const l of layers) for (const h of heads) for (let t = 0; t < T; t++) found[t] += at(l, h, t);
  return found.map((n) => n / (layers.length * heads.length));
}

const spans = [];
function paint() {
  const found = shares();
  spans.forEach((span, t) => {
    span.className = found[t] === 0 ? "gone" : "";
    span.style.background = `rgba(var(--keep), ${(found[t] * 0.6).toFixed(3)})`;
    span.title = `${t}: kept by ${(found[t] * 100).toFixed(0)} %`;
  });
  el("layer").value = layer;
  el("head").value = head;
  drawMap();
}

const columns = Math.min(T, 1200);
function drawMap() {
  const map = el("map");
  const rowHeight = Math.max(3, Math.min(14, Math.floor(420 / L)));
  map.width = columns;
  map.height = L * rowHeight;
  const context = map.getContext("2d");
  const rgb = getComputedStyle(document.documentElement).getPropertyValue("--keep");
  for (let l = 0; l < L; l++) {
    for (let c = 0; c < columns; c++) {
      const from = Math.floor((c * T) / columns);
      const to = Math.max(from + 1, Math.floor(((c + 1) * T) / columns));
      let n = 0;
      for (let t = from; t < to; t++) for (let h = 0; h < H; h++) if (head < 0 || h === head) n += at(l, h, t);
      const share = n / ((to - from) * (head < 0 ? H : 1));
      if (!share) continue;
      context.fillStyle = `rgba(${rgb}, ${0.15 + 0.85 * share})`;
      context.fillRect(c, l * rowHeight, 1, rowHeight);
    }
  }
  if (layer >= 0) {
    context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--lost");
    context.strokeRect(0.5, layer * rowHeight + 0.5, columns - 1, rowHeight - 1);
  }
}

function placeOf(event) {
  const box = el("map").getBoundingClientRect();
  const x = Math.min(0.999999, Math.max(0, (event.clientX - box.left) / box.width));
  const y = Math.min(0.999999, Math.max(0, (event.clientY - box.top) / box.height));
  return [Math.floor(y * L), Math.floor(x * T)];
}

function agreement() {
  const values = data.agreement;
  const [width, height, pad] = [640, 200, 34];
  const low = Math.min(...values), high = Math.max(...values);
  const x = (i) => pad + (i * (width - 2 * pad)) / Math.max(1, values.length - 1);
  const y = (v) => height - pad - ((v - low) * (height - 2 * pad)) / (high - low || 1);
  const points = values.map((v, i) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
  const label = `Head agreement from ${low.toFixed(2)} to ${high.toFixed(2)} over ${values.length} layers`;
  el("agreement").innerHTML =
    `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${label}">` +
    `<polyline points="${points}" fill="none" stroke="currentColor" stroke-width="2"/>` +
    values.map((v, i) => `<circle cx="${x(i)}" cy="${y(v)}" r="3" fill="currentColor"><title>` +
      `layer ${data.layers[i]}: ${v.toFixed(3)}</title></circle>`).join("") +
    `<text x="2" y="${y(high) + 4}">${high.toFixed(2)}</text>` +
    `<text x="2" y="${y(low) + 4}">${low.toFixed(2)}</text>` +
    `<text x="${pad}" y="${height - 6}">layer ${data.layers[0]}</text>` +
    `<text x="${width - pad}" y="${height - 6}" text-anchor="end">` +
    `${data.layers[values.length - 1]}</text></svg>`;
}

function start() {
  el("title").textContent = data.title;
  for (const [name, value] of data.facts) {
    const row = made("div", undefined, el("facts"));
    made("dt", name, row);
    made("dd", value, row);
  }
  for (const answer of data.answers) {
    const box = made("article", undefined, el("answers"));
    made("h3", answer.name, box);
    made("span", answer.about, box).className = "soft";
    const text = made("p", undefined, box);
    for (const [part, changed] of answer.parts) made(changed ? "mark" : "span", part, text);
  }
  for (const [id, n, names] of [["layer", L, data.layers], ["head", H, null]]) {
    const all = made("option", "all", el(id));
    all.value = -1;
    for (let i = 0; i < n; i++) made("option", names ? names[i] : i, el(id)).value = i;
  }
  const box = document.createDocumentFragment();
  data.tokens.forEach((token) => spans.push(made("span", token, box)));
  el("prompt").append(box);
  el("layer").onchange = (e) => { layer = +e.target.value; paint(); };
  el("head").onchange = (e) => { head = +e.target.value; paint(); };
  document.onkeydown = (e) => {
    if (e.target.tagName === "SELECT" || e.ctrlKey || e.metaKey || e.altKey) return;
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[e.key];
    if (e.key === "Escape") layer = head = -1;
    else if (!step) return;
    else {
      layer = Math.max(-1, Math.min(L - 1, layer + step[0]));
      head = Math.max(-1, Math.min(H - 1, head + step[1]));
    }
    e.preventDefault();
    paint();
  };
  el("map").onmousemove = (e) => {
    const [l, t] = placeOf(e);
    let n = 0;
    for (let h = 0; h < H; h++) n += at(l, h, t);
    el("where").textContent =
      `Layer ${data.layers[l]}, position ${t}: kept by ${n} of ${H} KV heads. Token: ${JSON.stringify(data.tokens[t])}`;
  };
  el("map").onclick = (e) => {
    const [l, t] = placeOf(e);
    layer = l;
    paint();
    document.querySelector("#prompt .here")?.classList.remove("here");
    spans[t].classList.add("here");
    spans[t].scrollIntoView({ block: "nearest" });
  };
  agreement();
  paint();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMap);
}
start();
