// Clients picked on the map, or by their kind: the rest of the page shows only them.
const maps = [...document.querySelectorAll("svg.map")];
const bar = document.getElementById("chosen");
let picked = new Set();

function ofKind(kind) {
  return new Set([...brush.kind.keys()].filter((i) => brush.kind[i] === kind));
}
function tally(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
  return counts;
}
function pick(clients) {
  picked = clients;
  const on = picked.size > 0;
  const kinds = tally([...picked].map((i) => brush.kind[i]));
  document.body.classList.toggle("filtered", on);
  for (const point of document.querySelectorAll(".point")) {
    const mine = picked.has(Number(point.dataset.i));
    point.classList.toggle("in", mine);
    point.setAttribute("aria-selected", String(mine));
  }
  for (const part of document.querySelectorAll("[data-kind]")) {
    part.classList.toggle("away", on && !kinds.has(part.dataset.kind));
  }
  const tabs = [...document.querySelectorAll(".tabs [data-kind]:not(.away)")];
  if (tabs.length && !tabs.some((tab) => tab.getAttribute("aria-pressed") === "true")) show(tabs[0]);
  for (const button of document.querySelectorAll(".pick")) {
    const whole = kinds.size === 1 && kinds.has(button.dataset.pick) && picked.size === ofKind(button.dataset.pick).size;
    button.setAttribute("aria-pressed", String(whole));
  }
  rowsOf(on);
  sizesOf(on);
  accuracies(on, kinds);
  bar.hidden = !on;
  const listed = [...kinds].sort().map(([kind, n]) => `${n} of kind ${kind}`).join(", ");
  const all = brush.client.length;
  const most = all < brush.clients ? " on the map" : "";
  const judged = document.querySelector("#accuracy") === null || document.body.classList.contains("judged");
  const kept = judged ? "" : " How accurate methods are for just these is hidden.";
  bar.querySelector("span").textContent = on ? `${picked.size} of ${all} clients${most}: ${listed}.${kept}` : "";
}
function rowsOf(on) {
  const table = document.querySelector("table[data-name=clients]");
  if (table === null) return;
  const names = new Set([...picked].map((i) => brush.client[i]));
  for (const row of table.tBodies[0].rows) row.classList.toggle("away", on && !names.has(row.cells[0].dataset.v));
}
// how many of the clients picked are in each bar; a size that is a range of several bars counts evenly in them
function sizesOf(on) {
  const figure = document.querySelector("svg.sizes");
  for (const old of figure.querySelectorAll(".part")) old.remove();
  if (!on) return;
  const bars = [...figure.querySelectorAll(".bar")];
  const inBar = new Map(bars.map((bar) => [bar, 0]));
  for (const i of picked) {
    const [low, high = low] = brush.size[i].replaceAll(",", "").match(/\d+/g).map(Number);
    const mine = bars.filter((bar) => Number(bar.dataset.low) <= high && Number(bar.dataset.high) > low);
    for (const bar of mine) inBar.set(bar, inBar.get(bar) + 1 / mine.length);
  }
  const scale = brush.clients / brush.client.length / Number(figure.dataset.top);
  for (const [bar, n] of inBar) {
    if (n === 0) continue;
    const tall = Number(figure.dataset.tall) * n * scale;
    const part = bar.cloneNode();
    part.setAttribute("class", "part");
    part.setAttribute("height", tall.toFixed(1));
    part.setAttribute("y", (Number(figure.dataset.base) - tall).toFixed(1));
    part.dataset.tip = `about ${Number(n.toFixed(1))} of the clients picked; ${bar.dataset.tip}`;
    bar.after(part);
  }
}
function accuracies(on, kinds) {
  for (const old of document.querySelectorAll(".dot.mine")) old.remove();
  const means = on ? meansOf(kinds) : {};
  document.body.classList.toggle("judged", Object.keys(means).length > 0);
  for (const row of document.querySelectorAll(".row[data-method]")) {
    const value = means[row.dataset.method];
    if (value === undefined || value === null) continue;
    const { low, high } = row.parentNode.dataset;
    const mark = document.createElement("i");
    mark.className = "dot mine";
    mark.style.left = (100 * (value - low)) / (high - low) + "%";
    mark.dataset.tip = `clients picked: ${(100 * value).toFixed(1)}%`;
    row.querySelector(".track").append(mark);
  }
}
// accuracy by method of the clients picked: theirs where the page has them, that of a kind where all of it is picked
function meansOf(kinds) {
  if (data.clients) {
    const [names, ...rows] = data.clients;
    const mine = new Set([...picked].map((i) => brush.client[i]));
    const some = rows.filter((row) => mine.has(row[0]));
    return Object.fromEntries(names.slice(3).map((name, j) => {
      const values = some.map((row) => row[j + 3]).filter((value) => value !== null && value !== undefined);
      return [name, values.length ? values.reduce((a, b) => a + b) / values.length : null];
    }));
  }
  const [kind] = kinds.keys();
  return kinds.size === 1 && picked.size === ofKind(kind).size ? brush.methods[kind] || {} : {};
}

function centre(point) {
  const box = point.getBBox();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
}
function inside(map, e) {
  const at = new DOMPoint(e.clientX, e.clientY).matrixTransform(map.getScreenCTM().inverse());
  return { x: at.x, y: at.y };
}
function toggle(i, more) {
  const next = new Set(more ? picked : []);
  if (picked.has(i) && (more || picked.size === 1)) next.delete(i);
  else next.add(i);
  pick(next);
}
function drag(map) {
  let begin = null;
  let area = null;
  map.addEventListener("pointerdown", (e) => {
    if (e.button !== 0) return;
    begin = inside(map, e);
    map.setPointerCapture(e.pointerId);
    if (e.pointerType === "mouse") e.preventDefault();
  });
  map.addEventListener("pointermove", (e) => {
    if (begin === null) return;
    const at = inside(map, e);
    if (area === null) {
      if (Math.hypot(at.x - begin.x, at.y - begin.y) < 5) return;
      area = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      area.setAttribute("class", "area");
      map.append(area);
    }
    area.setAttribute("x", Math.min(at.x, begin.x));
    area.setAttribute("y", Math.min(at.y, begin.y));
    area.setAttribute("width", Math.abs(at.x - begin.x));
    area.setAttribute("height", Math.abs(at.y - begin.y));
  });
  map.addEventListener("pointerup", (e) => {
    if (begin === null) return;
    const at = inside(map, e);
    if (area === null) {
      const under = document.elementFromPoint(e.clientX, e.clientY).closest(".point");
      if (under !== null) toggle(Number(under.dataset.i), e.shiftKey || e.ctrlKey || e.metaKey);
      else pick(new Set());
    } else {
      const [left, right] = [begin.x, at.x].sort((a, b) => a - b);
      const [top, bottom] = [begin.y, at.y].sort((a, b) => a - b);
      const mine = [...map.querySelectorAll(".point")].filter((point) => {
        const { x, y } = centre(point);
        return x >= left && x <= right && y >= top && y <= bottom;
      });
      const more = e.shiftKey ? [...picked] : [];
      pick(new Set([...more, ...mine.map((point) => Number(point.dataset.i))]));
    }
    stop();
  });
  map.addEventListener("pointercancel", stop);
  function stop() {
    if (area !== null) area.remove();
    begin = area = null;
  }
}
// the nearest point in the direction of an arrow key
function next(point, key) {
  const from = centre(point);
  const [dx, dy] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  let best = null;
  let least = Infinity;
  for (const other of point.parentNode.querySelectorAll(".point")) {
    const to = centre(other);
    const along = (to.x - from.x) * dx + (to.y - from.y) * dy;
    const across = Math.abs((to.x - from.x) * dy) + Math.abs((to.y - from.y) * dx);
    const far = along + 2 * across;
    if (along > 0.01 && far < least) [best, least] = [other, far];
  }
  return best;
}
for (const map of maps) {
  const points = [...map.querySelectorAll(".point")];
  map.setAttribute("role", "listbox");
  map.setAttribute("aria-multiselectable", "true");
  points.forEach((point, n) => {
    point.setAttribute("role", "option");
    point.setAttribute("aria-selected", "false");
    point.setAttribute("aria-label", words(point.dataset.i).replace("\n", ", "));
    point.setAttribute("tabindex", n === 0 ? "0" : "-1");
  });
  drag(map);
  map.addEventListener("focusin", (e) => {
    for (const point of points) point.setAttribute("tabindex", point === e.target ? "0" : "-1");
  });
  map.addEventListener("keydown", (e) => {
    const point = e.target.closest(".point");
    if (point === null) return;
    if (e.key.startsWith("Arrow")) {
      const other = next(point, e.key);
      if (other !== null) other.focus();
    } else if (e.key === "Home") points[0].focus();
    else if (e.key === "End") points[points.length - 1].focus();
    else if (e.key === " " || e.key === "Enter") toggle(Number(point.dataset.i), true);
    else return;
    e.preventDefault();
  });
}
document.addEventListener("keydown", (e) => {
  if (e.key === "Escape" && picked.size) pick(new Set());
});
document.addEventListener("click", (e) => {
  const button = e.target.closest(".pick");
  if (button === null) return;
  pick(button.getAttribute("aria-pressed") === "true" ? new Set() : ofKind(button.dataset.pick));
  const tab = document.querySelector(`.tabs [data-kind="${button.dataset.pick}"]`);
  if (tab !== null && picked.size) show(tab);
});
bar.querySelector("button").addEventListener("click", () => pick(new Set()));
