"use strict";
document.documentElement.classList.add("js");
const data = JSON.parse(document.getElementById("tables").textContent);
const brush = JSON.parse(document.getElementById("brush").textContent);
const tip = document.getElementById("tip");

function words(i) {
  return brush.client[i] + "\nkind " + brush.kind[i] + ", " + brush.size[i];
}

function place(x, y) {
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(6, Math.min(x + 14, innerWidth - box.width - 6)) + "px";
  tip.style.top = (y + box.height + 26 > innerHeight ? y - box.height - 10 : y + 16) + "px";
}
function tell(target, x, y) {
  const owner = target && target.closest ? target.closest("[data-tip], .point") : null;
  tip.classList.toggle("on", owner !== null);
  if (owner === null) return;
  tip.textContent = owner.dataset.tip || words(owner.dataset.i);
  place(x, y);
}
document.addEventListener("pointermove", (e) => tell(e.target, e.clientX, e.clientY));
document.addEventListener("pointerdown", (e) => tell(e.target, e.clientX, e.clientY));
document.addEventListener("focusin", (e) => {
  const box = e.target.getBoundingClientRect();
  tell(e.target, box.right, box.top);
});
document.addEventListener("scroll", () => {
  const owner = document.activeElement;
  const box = owner.getBoundingClientRect();
  tell(owner, box.right, box.top);
}, { passive: true });

function show(chosen) {
  for (const button of chosen.parentNode.children) {
    const on = button === chosen;
    button.setAttribute("aria-pressed", String(on));
    document.getElementById(button.dataset.show).classList.toggle("on", on);
  }
}
for (const tabs of document.querySelectorAll(".tabs")) {
  tabs.addEventListener("click", (e) => {
    const chosen = e.target.closest("button");
    if (chosen !== null) show(chosen);
  });
}

for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (button === null) return;
    button.addEventListener("click", () => {
      const number = head.classList.contains("num");
      const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : number;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.v;
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const left = value(a), right = value(b);
        if (left === "" || right === "") return (left === "") - (right === "");
        const by = number ? Number(left) - Number(right) : left.localeCompare(right, "en");
        return down ? -by : by;
      });
      table.tBodies[0].append(...rows);
    });
  });
}

function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  let text = String(value);
  if (/^[=+\-@\t\r\n]/.test(text)) text = "'" + text;
  return /[",\n\r']/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}
function csv(lines) {
  return lines.map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
}
function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
for (const button of document.querySelectorAll("button.csv")) {
  button.addEventListener("click", () => {
    const name = button.dataset.table;
    download(new Blob([csv(data[name])], { type: "text/csv" }), name + ".csv");
  });
}
