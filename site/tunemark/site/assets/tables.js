// Sorting and filtering of tables that are complete without it. No dependencies.
(() => {
  let collator = null; // made for the first texts to compare: it takes longer than the rest of a page

  const key = (row, index) => {
    const value = row.cells[index].dataset.sort;
    if (value === undefined) return null;
    const number = Number(value);
    return value.trim() !== "" && Number.isFinite(number) ? number : value;
  };

  const collated = (a, b) => (collator ??= new Intl.Collator("en", { numeric: true, sensitivity: "base" })).compare(String(a), String(b));
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : collated(a, b));

  // Failures stay below, and the unknown below the known, whichever way a column is sorted.
  const sort = (body, index, direction) => {
    const rows = [...body.rows].map((row, order) => ({ row, order, value: key(row, index), last: "last" in row.dataset }));
    rows.sort((a, b) => {
      if (a.last !== b.last) return a.last ? 1 : -1;
      if ((a.value === null) !== (b.value === null)) return a.value === null ? 1 : -1;
      if (a.value === null) return a.order - b.order;
      return direction * compare(a.value, b.value) || a.order - b.order;
    });
    body.append(...rows.map(({ row }) => row));
  };

  const makeSortable = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const ascending = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        sort(table.tBodies[0], index, ascending ? 1 : -1);
      });
    });
  };

  const FEW = 8;

  const makeFilterable = (box, table, number) => {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < FEW) return;
    let texts = null; // read for the first words
    const bar = document.createElement("div");
    bar.className = "tm-filter";
    const input = document.createElement("input");
    input.type = "search";
    input.id = `tm-filter-${number}`;
    input.placeholder = "Filter by words";
    input.setAttribute("aria-label", "Filter the rows of this table");
    const count = document.createElement("output");
    count.htmlFor = input.id;
    const show = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      if (words.length) texts ??= rows.map((row) => row.textContent.toLowerCase());
      rows.forEach((row, place) => { row.hidden = !words.every((word) => texts[place].includes(word)); });
      count.textContent = words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length}` : `${rows.length} rows`;
    };
    // The words stay in the address, for links and for Back.
    const name = `text${number || ""}`;
    const read = () => {
      input.value = new URLSearchParams(location.search).get(name) ?? "";
      show();
    };
    input.addEventListener("input", () => {
      const query = new URLSearchParams(location.search);
      if (input.value) query.set(name, input.value);
      else query.delete(name);
      show();
      globalThis.tunemarkAddress.visit(query.toString(), name);
    });
    addEventListener("popstate", read);
    bar.append(input, count);
    read();
    box.prepend(bar);
  };

  // A stacked table has its headings once, and on a phone a copy before each cell that has a value.
  document.querySelectorAll(".tm-stacked").forEach((table) => {
    const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent);
    for (const row of table.tBodies[0].rows) for (const cell of row.cells) cell.dataset.head = cell.textContent === "–" ? "" : heads[cell.cellIndex];
  });
  document.querySelectorAll(".tm-table-box[data-interactive]").forEach((box, number) => {
    const table = box.querySelector("table");
    makeSortable(table);
    makeFilterable(box, table, number);
  });

  // A page with a form of its own, or an explorer, names what it does not know itself.
  const unknown = document.querySelector("article form, .tm-explorer, #tm-compare") ? "" : globalThis.tunemarkAddress?.unknownNames(() => false);
  if (unknown) document.querySelector("h1").after(Object.assign(document.createElement("p"), { className: "tm-quiet", role: "status", textContent: unknown }));
})();
