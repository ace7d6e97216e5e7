// The SQL page: DuckDB in the browser, loaded when the reader asks for it. All files come from this site.
(() => {
  const box = document.querySelector("[data-sql]");
  if (!box) return;
  const { el } = globalThis.tunemarkCommon;
  const part = (name) => box.querySelector(`[data-sql-${name}]`);
  const address = (path) => new URL(path, document.baseURI).href;
  const folder = box.dataset.folder;
  const MOST_ROWS = 1000;
  const queries = JSON.parse(part("queries").textContent);
  const example = () => queries[part("examples").selectedIndex].sql;
  let connection = null;
  let shown = null;

  const state = (text) => {
    part("state").textContent = text;
  };
  const fail = (text) => {
    part("error").hidden = text === "";
    part("error").replaceChildren(...(text ? [el("p", {}, text)] : []));
  };

  // Start ---------------------------------------------------------------------------------------------
  const script = (path) =>
    new Promise((resolve, reject) => {
      const made = el("script", { src: address(path) });
      made.addEventListener("load", resolve);
      made.addEventListener("error", () => reject(new Error(`${path} could not be loaded`)));
      document.head.append(made);
    });

  const start = async () => {
    part("start").disabled = true;
    fail("");
    try {
      state("Loading DuckDB …");
      const map = el("script", { type: "importmap" });
      map.textContent = JSON.stringify({ imports: { "apache-arrow": address(`${folder}/apache-arrow.mjs`) } });
      document.head.append(map);
      await script(`${folder}/Arrow.es2015.min.js`);
      const duckdb = await import(address(`${folder}/duckdb-browser.mjs`));
      const worker = new Worker(address(`${folder}/duckdb-browser-eh.worker.js`));
      const database = new duckdb.AsyncDuckDB(new duckdb.VoidLogger(), worker);
      await database.instantiate(address(`${folder}/duckdb-eh.wasm`));
      await database.open({ query: { castBigIntToDouble: true, castDecimalToDouble: true } });
      state("Loading the data …");
      const response = await fetch(address(box.dataset.database));
      if (!response.ok) throw new Error(`the database could not be loaded (${response.status})`);
      await database.registerFileBuffer("tunemark.duckdb", new Uint8Array(await response.arrayBuffer()));
      connection = await database.connect();
      await connection.query("attach 'tunemark.duckdb' as tunemark (read_only)");
      await connection.query("use tunemark");
      // No request goes to another host, neither for an extension nor for a file that a query names.
      await connection.query("set autoinstall_known_extensions = false");
      await connection.query("set autoload_known_extensions = false");
      await connection.query("set enable_external_access = false");
      await connection.query("set lock_configuration = true");
      part("start-box").hidden = true;
      part("work").hidden = false;
      part("text").value = example();
      part("text").focus({ preventScroll: true });
      await run();
    } catch (error) {
      state("");
      part("start").disabled = false;
      const why = location.protocol === "file:" ? "This page needs a web server, such as `tunemark site serve`." : String(error.message ?? error);
      fail(`DuckDB did not start: ${why}`);
    }
  };

  // Queries -------------------------------------------------------------------------------------------
  const isTime = (field) => /^(Timestamp|Date)/.test(String(field.type));
  const text = (value, field) => {
    if (value === null || value === undefined) return "";
    if (isTime(field)) {
      const iso = new Date(Number(value)).toISOString();
      return String(field.type).startsWith("Date") ? iso.slice(0, 10) : iso.replace("T", " ").slice(0, 19);
    }
    if (typeof value === "object" && typeof value.toArray === "function") return [...value].join(", ");
    return typeof value === "object" ? JSON.stringify(value) : String(value);
  };

  const read = (result) => {
    const fields = result.schema.fields;
    const columns = fields.map((_, index) => result.getChildAt(index));
    const cells = (row) => columns.map((column, index) => text(column.get(row), fields[index]));
    const numeric = fields.map((field) => /^(Int|Uint|Float|Decimal)/.test(String(field.type)));
    return { names: fields.map((field) => field.name), numeric, length: result.numRows, cells };
  };

  const number = (value) => {
    const parsed = Number(value);
    return value === "" || !Number.isFinite(parsed) ? value : parsed.toLocaleString("en-US", { maximumSignificantDigits: 7, useGrouping: "min2" });
  };

  const cell = (value, name, index, table) => {
    const isResult = name === "result_id" && /^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(value);
    const content = isResult ? el("a", { href: `../results/${value}.html` }, value) : table.numeric[index] ? number(value) : value;
    const attributes = { class: table.numeric[index] ? "tm-num" : null };
    return index ? el("td", attributes, content) : el("th", { ...attributes, scope: "row" }, content);
  };

  const show = (table) => {
    const rows = Array.from({ length: Math.min(table.length, MOST_ROWS) }, (_, row) => table.cells(row));
    const head = table.names.map((name, index) => el("th", { scope: "col", class: table.numeric[index] ? "tm-num" : null }, name));
    const body = rows.map((row) => el("tr", {}, ...row.map((value, index) => cell(value, table.names[index], index, table))));
    part("result").replaceChildren(
      el(
        "div",
        { class: "tm-table-box" },
        el(
          "div",
          { class: "tm-scroll", tabindex: "0", role: "region", "aria-label": "Result of the query" },
          el("table", { class: "tm-table" }, el("caption", { class: "tm-unseen" }, "Result of the query"), el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)),
        ),
      ),
    );
  };

  const plainError = (message) => {
    const first = message.split("\n\n")[0].replace(/^Error: /, "");
    if (/extension|disabled by configuration|file system/i.test(first)) {
      return `${first.split("\n")[0]} This page downloads no extensions and reads no other files.`;
    }
    return first;
  };

  const run = async () => {
    if (connection === null) return;
    fail("");
    state("Running …");
    part("run").disabled = true;
    try {
      const began = performance.now();
      const table = read(await connection.query(part("text").value));
      const duration = globalThis.tunemarkCommon.duration((performance.now() - began) / 1000);
      shown = table;
      show(table);
      part("csv").disabled = table.length === 0;
      const cut = table.length > MOST_ROWS ? `; the first ${MOST_ROWS.toLocaleString("en-US")} are shown, the CSV has all` : "";
      state(`${table.length.toLocaleString("en-US")} ${table.length === 1 ? "row" : "rows"} in ${duration}${cut}`);
    } catch (error) {
      shown = null;
      part("result").replaceChildren();
      part("csv").disabled = true;
      state("");
      fail(plainError(String(error.message ?? error)));
    }
    part("run").disabled = false;
  };

  const download = () => {
    if (shown === null) return;
    const quote = (value) => {
      const inert = /^[=+\-@]/.test(value) && Number.isNaN(Number(value)) ? `'${value}` : value;
      return /[",\r\n]/.test(inert) ? `"${inert.replaceAll('"', '""')}"` : inert;
    };
    const lines = [shown.names, ...Array.from({ length: shown.length }, (_, row) => shown.cells(row))];
    const content = lines.map((line) => line.map(quote).join(",")).join("\n");
    const link = URL.createObjectURL(new Blob([`${content}\n`], { type: "text/csv" }));
    el("a", { href: link, download: "tunemark-query.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(link), 1000);
  };

  part("start").addEventListener("click", start);
  part("run").addEventListener("click", run);
  part("csv").addEventListener("click", download);
  part("examples").addEventListener("change", () => {
    part("text").value = example();
    run();
  });
  part("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    }
  });
  box.hidden = false;
})();
