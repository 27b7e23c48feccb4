"use strict";
// Sorts a table by the column whose button was pressed: up, and down where it is up already. Empty cells come last.
function sortBy(head) {
  const row = head.parentElement;
  const body = head.closest("table").tBodies[0];
  const place = Array.prototype.indexOf.call(row.cells, head);
  const down = head.getAttribute("aria-sort") === "ascending";
  const keyed = Array.from(body.rows, (line) => {
    const cell = line.cells[place];
    const text = cell.textContent.trim();
    return { line, empty: text === "", text, number: Number(cell.dataset.n ?? text) };
  });
  keyed.sort((one, other) => {
    if (one.empty || other.empty) return one.empty - other.empty;
    const order = isNaN(one.number) || isNaN(other.number) ? one.text.localeCompare(other.text) : one.number - other.number;
    return down ? -order : order;
  });
  for (const each of row.cells) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...keyed.map((each) => each.line));
}
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}

// Lays a slider over the axes of a plot: its values are the places of the plot, and the pointer moves it too.
function readable(plot) {
  const stops = JSON.parse(plot.dataset.stops);
  const box = JSON.parse(plot.dataset.box);
  const svg = plot.querySelector("svg");
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "g");
  cursor.setAttribute("class", "cursor");
  svg.append(cursor);
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("aria-hidden", "true");
  tip.hidden = true;
  const reader = document.createElement("div");
  reader.className = "reader";
  reader.tabIndex = 0;
  const attributes = { role: "slider", "aria-label": `Values of the plot: ${plot.dataset.name}`, "aria-valuemin": 1 };
  attributes["aria-valuemax"] = stops.length;
  for (const [name, value] of Object.entries(attributes)) reader.setAttribute(name, value);
  ["left", "top", "width", "height"].forEach((side, place) => { reader.style[side] = `${box[place]}%`; });
  plot.append(reader, tip);
  let at = 0;

  function name(place) {
    at = Math.max(0, Math.min(stops.length - 1, place));
    reader.setAttribute("aria-valuenow", at + 1);
    reader.setAttribute("aria-valuetext", stops[at][0]);
  }
  function show(place) {
    name(place);
    const [text, points] = stops[at];
    cursor.replaceChildren(...points.map(([x, y]) => {
      const ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
      for (const [key, value] of [["cx", x], ["cy", y], ["r", 5]]) ring.setAttribute(key, value);
      return ring;
    }));
    tip.textContent = text;
    tip.hidden = false;
    const [x, y] = points[0].map((value, axis) => value / (axis ? height : width));
    const room = plot.clientWidth - tip.offsetWidth;
    const left = x * plot.clientWidth + 12;
    tip.style.left = `${Math.max(0, Math.min(room, left > room ? left - 24 - tip.offsetWidth : left))}px`;
    tip.style.top = `${Math.max(0, y * plot.clientHeight - tip.offsetHeight - 12)}px`;
  }
  function hide() {
    tip.hidden = true;
    cursor.replaceChildren();
  }
  function nearest(event) {
    const frame = svg.getBoundingClientRect();
    const x = (event.clientX - frame.left) / frame.width * width;
    const y = (event.clientY - frame.top) / frame.height * height;
    const across = plot.dataset.nearest.includes("x"), up = plot.dataset.nearest.includes("y");
    const far = stops.map(([, points]) => Math.min(...points.map((point) =>
      (across ? (point[0] - x) ** 2 : 0) + (up ? (point[1] - y) ** 2 : 0))));
    return far.indexOf(Math.min(...far));
  }
  name(0);
  for (const moved of ["pointermove", "pointerdown"]) reader.addEventListener(moved, (event) => show(nearest(event)));
  // A finger that is lifted leaves the plot too: what it showed stays until another place is touched.
  reader.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch" && !reader.matches(":focus-visible")) hide();
  });
  reader.addEventListener("focus", () => show(at));
  reader.addEventListener("blur", hide);
  reader.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10 };
    if (event.key in steps) show(at + steps[event.key]);
    else if (event.key === "Home") show(0);
    else if (event.key === "End") show(stops.length - 1);
    else if (event.key === "Escape") return hide();
    else return;
    event.preventDefault();
  });
}
document.querySelectorAll(".plot").forEach(readable);

// On paper everything is open, also where the style sheet cannot open it.
const opened = [];
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details:not([open])")) opened.push(folded);
  for (const folded of opened) folded.open = true;
});
addEventListener("afterprint", () => {
  for (const folded of opened.splice(0)) folded.open = false;
});
