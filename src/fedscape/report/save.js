// A figure as a file: its boxes, texts and drawings as they are on the page, in one SVG without references.
const SVG = "http://www.w3.org/2000/svg";
const STYLED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "opacity"];

function node(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
function clear(colour) {
  return colour === "transparent" || /^rgba\(.*, 0\)$/.test(colour);
}
function asDrawn(original) {
  const copy = original.cloneNode(true);
  const pairs = [original, ...original.querySelectorAll("*")].map((part, i) => [part, i]);
  const parts = [copy, ...copy.querySelectorAll("*")];
  const gone = [];
  for (const [part, i] of pairs) {
    const style = getComputedStyle(part);
    if (style.display === "none") gone.push(parts[i]);
    for (const name of STYLED) parts[i].setAttribute(name, style.getPropertyValue(name));
    if (part.tagName === "text") {
      for (const name of ["font-size", "font-family"]) parts[i].setAttribute(name, style.getPropertyValue(name));
    }
    for (const name of ["class", "style", "tabindex", "role", "aria-label", "aria-selected", "aria-multiselectable"]) {
      parts[i].removeAttribute(name);
    }
  }
  gone.forEach((part) => part.remove());
  return copy;
}
// the lines of a text as the page breaks them
function lines(text) {
  const range = document.createRange();
  const found = [];
  for (const match of text.data.matchAll(/\S+/g)) {
    range.setStart(text, match.index);
    range.setEnd(text, match.index + match[0].length);
    const box = range.getBoundingClientRect();
    if (box.width === 0) continue;
    const last = found[found.length - 1];
    if (last && Math.abs(last.box.top - box.top) < 4) last.text += " " + match[0];
    else found.push({ text: match[0], box });
  }
  return found;
}
function draw(part, out, at) {
  const style = getComputedStyle(part);
  if (style.display === "none" || style.visibility === "hidden" || part.matches(".hidden")) return;
  const box = part.getBoundingClientRect();
  const [x, y] = [box.left - at.left, box.top - at.top];
  if (part.tagName === "svg") {
    const copy = asDrawn(part);
    for (const [key, value] of Object.entries({ x, y, width: box.width, height: box.height, overflow: "visible" })) {
      copy.setAttribute(key, value);
    }
    out.append(copy);
    return;
  }
  const [thick, below] = [parseFloat(style.borderLeftWidth), parseFloat(style.borderBottomWidth)];
  if (!clear(style.backgroundColor) || thick > 0) {
    const turned = style.rotate !== "none" ? ` rotate(${parseFloat(style.rotate)})` : "";
    const [w, h] = turned ? [part.offsetWidth, part.offsetHeight] : [box.width, box.height];
    out.append(node("rect", {
      x: (thick - w) / 2, y: (thick - h) / 2, width: Math.max(w - thick, 0.5), height: Math.max(h - thick, 0.5),
      transform: `translate(${x + box.width / 2} ${y + box.height / 2})${turned}`,
      rx: Math.min(parseFloat(style.borderTopLeftRadius) * (style.borderTopLeftRadius.includes("%") ? box.width / 100 : 1), w / 2),
      fill: clear(style.backgroundColor) ? "none" : style.backgroundColor,
      stroke: thick > 0 ? style.borderLeftColor : "none", "stroke-width": thick, opacity: style.opacity,
    }));
  }
  for (const [edge, wide] of [["Top", parseFloat(style.borderTopWidth)], ["Bottom", below]]) {
    if (thick > 0 || wide === 0) continue;
    const line = edge === "Top" ? y : y + box.height;
    out.append(node("line", { x1: x, x2: x + box.width, y1: line, y2: line, stroke: style[`border${edge}Color`], "stroke-width": wide }));
  }
  for (const child of part.childNodes) {
    if (child.nodeType === Node.ELEMENT_NODE) draw(child, out, at);
    else if (child.nodeType === Node.TEXT_NODE) {
      for (const { text, box: place } of lines(child)) {
        out.append(node("text", {
          x: place.left - at.left, y: place.top - at.top + place.height / 2, "dominant-baseline": "central",
          "font-size": style.fontSize, "font-weight": style.fontWeight, "font-family": style.fontFamily, fill: style.color,
        }, text));
      }
    }
  }
}
function picture(card) {
  const figure = card.querySelector("figure");
  card.classList.add("saving");  // without its buttons
  const ground = getComputedStyle(card);
  const pad = 20;
  const box = figure.getBoundingClientRect();
  const wide = Math.max(box.width, ...[...figure.querySelectorAll("table")].map((table) => table.offsetWidth)) + 2 * pad;
  const tall = box.height + 2 * pad + 22;
  const out = node("svg", { xmlns: SVG, viewBox: `0 0 ${wide} ${tall}`, width: wide, height: tall });
  const command = card.querySelector("details code").textContent;
  out.append(node("title", {}, figure.querySelector("h3").textContent), node("desc", {}, command));
  out.append(node("rect", { width: wide, height: tall, fill: ground.backgroundColor }));
  draw(figure, out, { left: box.left - pad, top: box.top - pad });
  const soft = getComputedStyle(figure.querySelector("figcaption"));
  out.append(node("text", { x: pad, y: tall - 14, "font-size": "11px", "font-family": soft.fontFamily, fill: soft.color }, brush.made));
  card.classList.remove("saving");
  return { text: new XMLSerializer().serializeToString(out), wide, tall };
}
function asPng({ text, wide, tall }, name) {
  const source = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  const image = new Image();
  image.onload = () => {
    const sheet = document.createElement("canvas");
    [sheet.width, sheet.height] = [2 * wide, 2 * tall];
    sheet.getContext("2d").drawImage(image, 0, 0, 2 * wide, 2 * tall);
    URL.revokeObjectURL(source);
    sheet.toBlob((blob) => download(blob, name + ".png"));
  };
  image.src = source;
}
for (const button of document.querySelectorAll("button.save")) {
  button.addEventListener("click", () => {
    const card = button.closest(".card");
    const made = picture(card);
    if (button.dataset.as === "png") asPng(made, card.id);
    else download(new Blob([made.text], { type: "image/svg+xml" }), card.id + ".svg");
  });
}
