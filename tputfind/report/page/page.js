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
    return { line, empty: text === "", text, number: parseFloat(cell.dataset.n) };
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
