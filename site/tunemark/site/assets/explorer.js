// The explorer of all results: exact filters with counts, free text, columns, sorting, and CSV of what is shown.
// It reads one columnar file (script_data/explorer.sql) and keeps its state in the address. It needs common.js.
(() => {
  const root = document.querySelector(".tm-explorer");
  if (!root) return;
  const MISSING = "–";
  const UNSTATED = "not stated";
  const FIRST = 20; // rows drawn at once
  const USUAL = 50; // rows drawn as soon as the browser is idle
  const STEP = 200; // rows drawn on request
  const FAILED = 1; // a row with another flag is impossible; rows with flags stay below the others
  const BARS = new Set(["rate", "flop_per_s", "bytes", "percent", "usd"]); // kinds of figures that are drawn as bars too
  const BELOW = { model: ["method", "row_length", "quantisation"], trust: ["source"] }; // columns in small print below another, unless they are shown
  const HEADLINE = { tokens_per_s: "tokens/s", samples_per_s: "samples/s", time_to_target_s: "to target", step_time_s: "per step" };
  const COST = { usd_per_1m_tokens: "per 1M tokens", usd_per_1k_samples: "per 1k samples" };
  const WORK = ["model", "method", "row_length", "devices"]; // figures of rows that differ in these are not comparable
  const PART_OF = " (per "; // "GB300 (per B300 GPU of the superchip)": a facet and a row show its start
  const FORMULA = /^[=+\-@]/;
  const OPEN = new Set(["accelerator", "devices", "model", "method"]); // facets that start open

  // Formats ------------------------------------------------------------------------------------------

  const { duration, el, fixed, gib, significant, unknownNames, usd, visit } = globalThis.tunemarkCommon;
  const counted = (value) => fixed(value, 0);
  const flopPerSecond = (value) => {
    const [size, prefix] = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"]].find(([least]) => value >= least) ?? [1, ""];
    return `${significant(value / size)} ${prefix}FLOP/s`;
  };
  const FORMATS = {
    count: counted,
    rate: significant,
    percent: (value) => `${significant(value * 100)}%`,
    bytes: gib,
    usd,
    seconds: duration,
    flop_per_s: flopPerSecond,
  };

  // DOM ---------------------------------------------------------------------------------------------

  const write = (node, text) => {
    if (node.textContent !== text) node.textContent = text;
  };
  const whenIdle = (task) => (window.requestIdleCallback ?? ((run) => setTimeout(run, 50)))(task, { timeout: 300 });
  const cancelIdle = (number) => (window.cancelIdleCallback ?? clearTimeout)(number);
  const set = (node, property, value) => {
    if (node[property] !== value) node[property] = value;
  };

  // Data --------------------------------------------------------------------------------------------

  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const NO_WORDS = /[^\p{L}\p{N}.]+/u;
  const [PURE, LETTERS] = [/^\d+(\.\d+)?$/, /^\p{L}+$/u];
  const tokens = (text) => text.toLowerCase().split(NO_WORDS).map((part) => part.replace(/^\.+|\.+$/g, "")).filter(Boolean);

  // A table of rows: for each field its values, and for texts and counts a code of each row, the last code meaning "not stated".
  const readTable = ({ fields, columns, titles }) => {
    const size = columns.id.length;
    const byKey = new Map(fields.map((field) => [field.key, field]));
    for (const field of fields) {
      const column = columns[field.key];
      if (field.kind === "text" || field.facet) Object.assign(field, coded(column));
      else field.numbers = Float64Array.from(column, (value) => value ?? NaN);
      if (field.key === "source") field.titles = field.values.map((value) => titles[value] ?? "");
    }
    return { size, fields, byKey, ids: columns.id, flags: Uint8Array.from(columns.flags), ambiguous: columns.ambiguous, doubted: columns.doubted };
  };

  const coded = (column) => {
    const seen = new Map(column.filter((value) => value !== null).map((value) => [value, 0]));
    const values = [...seen.keys(), null];
    values.forEach((value, code) => seen.set(value, code));
    return { values, codes: Int32Array.from(column, (value) => seen.get(value)) };
  };

  const valueOf = (field, row) => {
    if (field.codes) return field.values[field.codes[row]];
    const number = field.numbers[row];
    return Number.isNaN(number) ? null : number;
  };
  const textOf = (field, value) => (value === null ? MISSING : field.kind === "text" ? value : FORMATS[field.kind](value));

  // Free text: a word is matched whole where it exists, otherwise as the start of a word. So `lora` is not QLoRA, and `A10` not A100.
  const makeSearch = (table) => {
    const searched = table.fields.filter((field) => field.kind === "text" || field.key === "devices");
    const wordsOf = (field, value) => {
      if (value === null) return [];
      if (field.key === "devices") return [`${value}`, `x${value}`, `${value}x`];
      return tokens(value);
    };
    const words = searched.map((field) => field.values.map((value) => wordsOf(field, value)));
    // A title about LoRA and QLoRA does not make all of its rows both: it has the words that no other field has.
    const known = new Set(words.flat(2));
    const inTitle = (title) => tokens(title).filter((word) => !known.has(word));
    searched.forEach(({ titles }, index) => titles?.forEach((title, code) => words[index][code].push(...inTitle(title))));
    const vocabulary = new Set(words.flat(2));
    const starts = (word, part) => word.startsWith(part) && !(/\d$/.test(part) && /^\d/.test(word.slice(part.length)));
    const hit = (word, part) => (vocabulary.has(part) ? word === part : starts(word, part));

    // A name and its number are one: "gemma 3" is neither Gemma 2B on Gaudi 3 nor, where no model is called so, three devices with Gemma.
    const names = searched.flatMap(({ key }, index) => (key === "model" || key === "accelerator" ? words[index] : []));
    const numbered = new Set(names.flatMap((list) => list.filter((word, place) => LETTERS.test(word) && /^\d/.test(list[place + 1] ?? ""))));
    const joined = (parts) => parts.reduce((all, part) => {
      const before = all.at(-1);
      if (PURE.test(part.raw) && before && numbered.has(before.raw)) {
        all.pop();
        return [...all, { raw: `${before.raw} ${part.raw}`, parts: [before.raw, part.raw], adjacent: true }];
      }
      return [...all, part];
    }, []);
    const beside = (list, [name, number]) => list.some((word, place) => (word === name && list[place + 1] === number) || word === name + number);

    // For each row, 1 if one of its values has all parts of a typed word, or if its id starts with the word.
    const rowsWith = ({ raw, parts, adjacent }) => {
      const found = new Uint8Array(table.size);
      searched.forEach(({ codes }, index) => {
        const mask = Uint8Array.from(words[index], (list) => ((adjacent ? beside(list, parts) : parts.every((part) => list.some((word) => hit(word, part)))) ? 1 : 0));
        if (!mask.includes(1)) return;
        for (let row = 0; row < table.size; row += 1) found[row] |= mask[codes[row]];
      });
      if (raw.length > 2) for (let row = 0; row < table.size; row += 1) if (!found[row] && table.ids[row].startsWith(raw)) found[row] = 1;
      return found;
    };

    // The rows that have all words, null without a word, and the words that no row has. `8xH100` is `x8 H100`.
    return (text) => {
      const counted = text.toLowerCase().replace(/(?<![\w.])(\d+)\s*[x×]\s*(?=[a-z])/g, "x$1 ").replace(/(?:×|\bx)\s*(\d+)(?![\w.])/g, "x$1");
      const parts = joined(counted.split(/\s+/).filter(Boolean).map((raw) => ({ raw, parts: tokens(raw) })).filter((word) => word.parts.length));
      const masks = parts.map((word) => rowsWith(word));
      return {
        mask: masks.length ? masks.reduce((all, mask) => all.map((found, row) => found & mask[row])) : null,
        unknown: parts.filter((_, index) => !masks[index].includes(1)).map(({ raw }) => raw),
      };
    };
  };

  // Orders of all rows, one per column and direction. The unknown are last, failed and impossible rows after them.
  const makeOrders = (table) => {
    const made = new Map();
    const natural = Int32Array.from({ length: table.size }, (_, row) => row);
    const byFigure = ({ numbers }, rows, direction) => rows.sort((a, b) => direction * (numbers[a] - numbers[b]) || a - b);
    const byCode = ({ values, codes }, rows, direction) => {
      const known = values.map((value, code) => ({ value, code })).filter(({ value }) => value !== null);
      known.sort((a, b) => direction * (typeof a.value === "number" ? a.value - b.value : collator.compare(a.value, b.value)));
      const groups = values.map(() => []);
      for (const row of rows) groups[codes[row]].push(row);
      return known.flatMap(({ code }) => groups[code]);
    };
    const make = (field, direction) => {
      const unknown = field.codes ? (row) => field.values[field.codes[row]] === null : (row) => Number.isNaN(field.numbers[row]);
      const [known, missing, last] = [[], [], []];
      for (const row of natural) (table.flags[row] ? last : unknown(row) ? missing : known).push(row);
      return Int32Array.from([...(field.codes ? byCode : byFigure)(field, known, direction), ...missing, ...last]);
    };
    return (sort) => {
      if (!sort) return natural;
      const name = `${sort.direction}${sort.key}`;
      if (!made.has(name)) made.set(name, make(table.byKey.get(sort.key), sort.direction));
      return made.get(name);
    };
  };

  // State, and the address that holds it ------------------------------------------------------------

  const emptyState = () => ({ text: "", chosen: new Map(), sort: null, columns: null, strange: [], names: "" });

  const readAddress = (table) => {
    const parameters = new URLSearchParams(location.search);
    const state = emptyState();
    state.text = parameters.get("text") ?? "";
    for (const field of table.fields.filter(({ facet }) => facet)) {
      const codes = parameters.getAll(field.key).map((text) => [text, field.values.findIndex((value) => (value === null ? "" : String(value)) === text)]);
      const known = codes.map(([, code]) => code).filter((code) => code >= 0);
      if (known.length) state.chosen.set(field.key, new Set(known));
      state.strange.push(...codes.filter(([, code]) => code < 0).map(([text]) => `${field.label.toLowerCase()} "${text}"`));
    }
    const [, minus, key] = /^(-?)(.*)$/.exec(parameters.get("sort") ?? "");
    if (table.byKey.has(key)) state.sort = { key, direction: minus ? -1 : 1 };
    else if (key) state.strange.push(`column "${key}"`);
    state.names = unknownNames((name) => ["sort", "columns"].includes(name) || table.fields.some(({ facet, key: known }) => facet && known === name));
    const columns = parameters.get("columns")?.split(",").filter(Boolean) ?? null;
    const unknown = columns?.filter((name) => !table.byKey.has(name)) ?? [];
    state.strange.push(...unknown.map((name) => `column "${name}"`));
    if (columns && !(columns.length && columns.length === unknown.length)) state.columns = new Set(columns.filter((name) => table.byKey.has(name)));
    return state;
  };

  const writeAddress = (table, state, { replace }) => {
    const parameters = new URLSearchParams();
    if (state.text) parameters.set("text", state.text);
    for (const [key, codes] of state.chosen) {
      const { values } = table.byKey.get(key);
      for (const code of codes) parameters.append(key, values[code] ?? "");
    }
    if (state.sort) parameters.set("sort", `${state.sort.direction < 0 ? "-" : ""}${state.sort.key}`);
    if (state.columns) parameters.set("columns", [...state.columns].join(","));
    visit(parameters.toString(), replace ? "text" : {});
  };

  // One pass over the rows: those that match, and for each value of a facet the rows that match everything but that facet.
  const select = (table, facets, order, state, matches) => {
    const codes = facets.map((field) => field.codes);
    const counts = facets.map((field) => new Int32Array(field.values.length));
    const limits = facets.map((field) => {
      const chosen = state.chosen.get(field.key);
      return chosen ? Uint8Array.from(field.values, (_, code) => (chosen.has(code) ? 1 : 0)) : null;
    });
    const limited = facets.map((_, index) => index).filter((index) => limits[index]);
    const rows = [];
    for (let place = 0; place < order.length; place += 1) {
      const row = order[place];
      if (matches && !matches[row]) continue;
      let missed = -1;
      let misses = 0;
      for (const index of limited) {
        if (limits[index][codes[index][row]]) continue;
        missed = index;
        misses += 1;
      }
      if (misses > 1) continue;
      if (misses === 0) {
        rows.push(row);
        for (let index = 0; index < codes.length; index += 1) counts[index][codes[index][row]] += 1;
      } else counts[missed][codes[missed][row]] += 1;
    }
    return { rows, counts };
  };

  // The page ----------------------------------------------------------------------------------------

  const explore = (table) => {
    const facets = table.fields.filter(({ facet }) => facet);
    let search = null; // made for the first words
    const ordered = makeOrders(table);
    const field = (key) => table.byKey.get(key);
    const columnsOf = (state) => table.fields.filter(({ key, shown }) => key === "accelerator" || (state.columns ? state.columns.has(key) : shown));
    let state = readAddress(table);
    let found = { rows: [] };
    let pending = 0;
    let drawnHeading = "";
    let limit = USUAL;

    const nameOf = (row) => {
      const devices = valueOf(field("devices"), row);
      const [name] = (valueOf(field("accelerator"), row) ?? "accelerator unknown").split(PART_OF);
      return name + (devices === null ? "" : ` × ${devices}`);
    };

    // A bar is a share of the largest figure of the same work: figures of other work are not comparable, nor is a rate with a finding.
    const comparable = (row, { key }) => !table.flags[row] && (!table.doubted[row] || key === "peak_memory_bytes");
    const works = table.ids.map((_, row) => WORK.map((key) => field(key).codes[row]).join());
    const largest = new Map();
    const largestOf = (column) => {
      if (!largest.has(column)) {
        const known = new Map(); // work -> number of figures, and the largest
        for (let row = 0; row < table.size; row += 1) {
          const value = valueOf(column, row), [number, most] = known.get(works[row]) ?? [0, 0];
          if (value > 0 && comparable(row, column)) known.set(works[row], [number + 1, Math.max(most, value)]);
        }
        largest.set(column, known);
      }
      return largest.get(column);
    };

    // The example is the most frequent kind of result of the most common method, so that it finds some.
    const example = () => {
      const seen = new Map();
      for (let row = 0; row < table.size; row += 1) {
        const [method, accelerator, devices, model] = ["method", "accelerator", "devices", "model"].map((key) => valueOf(field(key), row));
        if (method !== "LoRA" || !accelerator || !devices || !model) continue;
        const words = `${accelerator.split(PART_OF)[0]} ×${devices} ${method} ${model}`;
        seen.set(words, (seen.get(words) ?? 0) + 1);
      }
      return [...seen].reduce((best, each) => (each[1] > best[1] ? each : best), ["", 0])[0];
    };

    // Toolbar
    const text = el("input", { type: "search", id: "tm-explorer-text", autocomplete: "off", placeholder: example() });
    const sortBy = el("select", { id: "tm-explorer-sort" });
    for (const { key, label, kind } of table.fields) {
      const directions = kind === "text" ? [[1, "A to Z"], [-1, "Z to A"]] : [[-1, "highest first"], [1, "lowest first"]];
      for (const [direction, words] of directions) {
        sortBy.append(el("option", { value: `${direction < 0 ? "-" : ""}${key}`, text: `${label}, ${words}` }));
      }
    }
    sortBy.prepend(el("option", { value: "default", text: "Default: model FLOP/s per device" }));
    const csv = el("button", { type: "button", class: "tm-explorer-button" }, el("span", { class: "tm-explorer-wide", text: "Download " }), "CSV");
    const reset = el("button", { type: "button", class: "tm-explorer-button", text: "Clear all" });
    const columnBoxes = new Map(table.fields.filter(({ key }) => key !== "accelerator").map(({ key }) => [key, el("input", { type: "checkbox", value: key })]));
    const chooser = el("details", { class: "tm-explorer-columns" },
      el("summary", { text: "Columns" }),
      el("fieldset", {}, el("legend", { class: "tm-unseen", text: "Columns" }),
        ...[...columnBoxes].map(([key, box]) => el("label", {}, box, field(key).label))));
    const bar = el("div", { class: "tm-explorer-bar" },
      el("div", { class: "tm-explorer-text" }, el("label", { for: text.id, text: "Search results" }), text),
      el("div", { class: "tm-explorer-sort" }, el("label", { for: sortBy.id, text: "Sort" }), sortBy),
      chooser, csv);

    // Facets. The choices of a closed one are made when it is opened; on a phone all start closed.
    const wide = window.matchMedia("(min-width: 60em)").matches;
    const choicesOf = (facet) => {
      const order = facet.values.map((_, code) => code);
      const totals = new Int32Array(facet.values.length);
      for (const code of facet.codes) totals[code] += 1;
      order.sort((a, b) => (facet.values[a] === null) - (facet.values[b] === null) || totals[b] - totals[a] || collator.compare(String(facet.values[a]), String(facet.values[b])));
      return order.map((code) => {
        const box = el("input", { type: "checkbox" });
        box.dataset.code = code;
        const value = facet.values[code];
        const count = el("span", { class: "tm-explorer-count" });
        const shown = value === null ? UNSTATED : facet.titles?.[code] && facet.titles[code] !== value ? `${value} ${facet.titles[code]}` : textOf(facet, value);
        const label = el("label", { title: shown.length > 24 ? shown : null }, box, el("span", { text: shown.split(PART_OF)[0] }), count);
        return { code, box, count, label };
      });
    };
    const facetNodes = facets.map((facet) => {
      const chosen = el("span", { class: "tm-explorer-chosen" });
      const list = el("fieldset", {}, el("legend", { class: "tm-unseen", text: facet.label }));
      const details = el("details", { "data-facet": facet.key, open: (wide && OPEN.has(facet.key)) || state.chosen.has(facet.key) },
        el("summary", {}, el("span", { text: facet.label }), chosen), list);
      const node = { facet, choices: [], chosen, details };
      const fill = () => {
        if (!node.choices.length && details.open) list.append(...(node.choices = choicesOf(facet)).map(({ label }) => label));
      };
      fill();
      details.addEventListener("toggle", () => drawFacets(fill()));
      details.addEventListener("change", ({ target }) => {
        const codes = new Set(state.chosen.get(facet.key));
        codes[target.checked ? "add" : "delete"](Number(target.dataset.code));
        if (codes.size) state.chosen.set(facet.key, codes);
        else state.chosen.delete(facet.key);
        changed();
      });
      return node;
    });
    const filtersTitle = el("span", { text: "Filters" });
    const drawer = el("details", { class: "tm-explorer-drawer", open: wide },
      el("summary", {}, filtersTitle),
      ...facetNodes.map(({ details }) => details));

    // Table
    const count = el("output", { "aria-live": "polite", for: text.id });
    const leftOut = el("span");
    const head = el("thead");
    const body = el("tbody");
    const grid = el("table", { class: "tm-table tm-explorer-table" }, el("caption", { class: "tm-unseen", text: "Results" }), head, body);
    const more = el("button", { type: "button", class: "tm-explorer-button tm-explorer-more" });
    const main = el("div", { class: "tm-explorer-main" },
      el("div", { class: "tm-explorer-status" }, count, leftOut, reset),
      el("div", { class: "tm-scroll", tabindex: "0", role: "region", "aria-label": "Results" }, grid), more);
    root.replaceChildren(bar, el("div", { class: "tm-explorer-body" }, drawer, main));

    const drawHead = (columns) => {
      const sorted = (key) => (state.sort?.key === key ? (state.sort.direction < 0 ? "descending" : "ascending") : false);
      const cells = columns.map(({ key, label, kind, explained }) => {
        const button = el("button", { type: "button", text: label, "data-sort-key": key });
        return el("th", { scope: "col", class: kind === "text" ? null : "tm-num", "aria-sort": sorted(key), title: explained || null }, button);
      });
      const pressed = head.contains(document.activeElement) ? document.activeElement.dataset.sortKey : undefined;
      head.replaceChildren(el("tr", {}, ...cells));
      if (pressed) head.querySelector(`[data-sort-key="${pressed}"]`)?.focus();
    };

    // On a phone a row is a card that starts with the accelerator, the first known figure and the first known cost.
    const headlineOf = (row) => {
      const first = (units) => Object.keys(units).find((key) => valueOf(field(key), row) !== null);
      const [figure, cost] = [first(HEADLINE), first(COST)];
      const part = (key, units) => (key ? [textOf(field(key), valueOf(field(key), row)), units[key]] : null);
      return { figure: part(figure, HEADLINE) ?? ["no figure", ""], cost: part(cost, COST) ?? ["cost not known", ""], keys: new Set([figure, cost]) };
    };

    const drawRow = (row, columns) => {
      const headline = headlineOf(row);
      const doubtful = (table.ambiguous[row] ?? "").split(" ");
      const id = table.ids[row];
      const cells = columns.map((column) => {
        const value = valueOf(column, row);
        if (column.key === "accelerator") {
          const link = el("a", { href: `${encodeURIComponent(id)}.html`, text: nameOf(row) });
          const figure = el("span", { class: "tm-explorer-figure" },
            el("strong", { text: headline.figure.join(" ") }), ` ${headline.cost.join(" ")}`);
          return el("th", { scope: "row", "data-key": column.key }, link,
            el("span", { class: "tm-explorer-id" }, el("small", { text: id }), el("a", { class: "tm-explorer-mark", href: `../compare.html#${encodeURIComponent(id)}`, text: "Compare", "aria-label": `Compare ${nameOf(row)}, ${id}` })), figure);
        }
        const cell = el("td", {
          class: [column.kind === "text" ? "" : "tm-num", value === null ? "tm-explorer-none" : "", headline.keys.has(column.key) ? "tm-explorer-told" : ""].join(" ").trim(),
          "data-key": column.key, "data-head": column.label,
        });
        cell.append(textOf(column, value));
        const beside = BARS.has(column.kind) && value > 0 && comparable(row, column) ? largestOf(column).get(works[row]) : [0];
        if (beside[0] > 1) cell.style.setProperty("--bar", `${(100 * value) / beside[1]}%`);
        const below = (BELOW[column.key] ?? []).map(field).filter((other) => !columns.includes(other) && ![null, value].includes(valueOf(other, row)));
        if (below.length) cell.append(el("small", { text: below.map((other) => textOf(other, valueOf(other, row)) + (other.kind === "count" ? " tokens" : "")).join(", ") }));
        if (value !== null && column.titles?.[column.codes[row]]) cell.title = column.titles[column.codes[row]];
        if (doubtful.includes(column.key)) cell.append(" ", el("span", { class: "tm-mark", text: "ambiguous" }));
        return cell;
      });
      const mark = table.flags[row] & FAILED ? valueOf(field("status"), row) ?? "failed" : table.flags[row] ? "impossible" : table.doubted[row];
      if (mark) cells[0].append(el("span", { class: "tm-mark", text: mark }));
      return el("tr", { "data-id": id, "data-last": Boolean(table.flags[row]) }, ...cells);
    };

    const append = (from, to) => {
      const columns = columnsOf(state);
      const drawn = document.createDocumentFragment();
      for (const row of found.rows.slice(from, to)) drawn.append(drawRow(row, columns));
      body.append(drawn);
    };
    const drawMore = () => {
      const drawn = body.rows.length;
      append(drawn, limit);
      const left = found.rows.length - body.rows.length;
      more.hidden = left <= 0;
      write(more, `Show ${counted(Math.min(STEP, left))} more of ${counted(left)}`);
      return body.rows[drawn];
    };
    const drawRows = () => {
      cancelIdle(pending);
      body.replaceChildren();
      append(0, FIRST);
      if (found.rows.length > FIRST) pending = whenIdle(drawMore);
      else drawMore();
    };

    const drawFacets = () => {
      facetNodes.forEach(({ facet, choices, chosen }, index) => {
        const codes = state.chosen.get(facet.key);
        for (const { code, box, count: number, label } of choices) {
          const rows = found.counts[index][code];
          const checked = Boolean(codes?.has(code));
          set(box, "checked", checked);
          set(label, "hidden", rows === 0 && !checked);
          if (rows) write(number, counted(rows));
        }
        write(chosen, codes ? `${codes.size} chosen` : "");
      });
      write(filtersTitle, state.chosen.size ? `Filters: ${[...state.chosen.keys()].map((key) => field(key).label.toLowerCase()).join(", ")}` : "Filters");
    };

    const draw = () => {
      const { mask, unknown } = state.text ? (search ??= makeSearch(table))(state.text) : { mask: null, unknown: [] };
      found = select(table, facets, ordered(state.sort), state, mask);
      const columns = columnsOf(state);
      const heading = JSON.stringify([columns.map(({ key }) => key), state.sort]);
      if (heading !== drawnHeading) drawHead(columns);
      drawnHeading = heading;
      drawFacets();
      drawRows();
      for (const [key, box] of columnBoxes) box.checked = columns.includes(field(key));
      if (text.value !== state.text) text.value = state.text;
      sortBy.value = state.sort ? `${state.sort.direction < 0 ? "-" : ""}${state.sort.key}` : "default";
      write(count, `${counted(found.rows.length)} of ${counted(table.size)} results`);
      const reason = unknown.length
        ? `No result has ${unknown.map((word) => `"${word}"`).join(" or ")} in the accelerator, model, method, trust, software, status, year, source or id.`
        : "No result matches all filters and words; clear one of them.";
      const strange = state.strange.length ? `The address asks for what no result has: ${state.strange.join(", ")}.` : "";
      write(leftOut, `${found.rows.length ? "" : reason} ${strange} ${state.names}`.trim());
      reset.hidden = !location.search;
    };

    const changed = ({ replace = false } = {}) => {
      limit = USUAL;
      [state.strange, state.names] = [[], ""];
      writeAddress(table, state, { replace });
      draw();
    };

    // Reader
    const sortOn = (key) => {
      const first = field(key).kind === "text" ? 1 : -1;
      const again = state.sort?.key === key;
      state.sort = again && state.sort.direction !== first ? null : { key, direction: again ? -first : first };
      changed();
    };
    text.addEventListener("input", () => {
      state.text = text.value;
      changed({ replace: true });
    });
    sortBy.addEventListener("change", () => {
      const [, minus, key] = /^(-?)(.*)$/.exec(sortBy.value);
      state.sort = key === "default" ? null : { key, direction: minus ? -1 : 1 };
      changed();
    });
    chooser.addEventListener("change", () => {
      const keys = [...columnBoxes].filter(([, box]) => box.checked).map(([key]) => key);
      const usual = table.fields.filter(({ key, shown }) => shown && key !== "accelerator").map(({ key }) => key);
      state.columns = keys.join() === usual.join() ? null : new Set(keys);
      changed();
    });
    head.addEventListener("click", ({ target }) => { if (target.dataset.sortKey) sortOn(target.dataset.sortKey); });
    reset.addEventListener("click", () => {
      state = emptyState();
      changed();
      text.focus();
    });
    more.addEventListener("click", () => {
      limit += STEP;
      drawMore()?.querySelector("a").focus();
    });
    csv.addEventListener("click", () => download(csvText(columnsOf(state))));
    window.addEventListener("popstate", () => {
      state = readAddress(table);
      limit = USUAL;
      draw();
    });

    // Every row that matches, in the order and with the columns shown. Numbers are exact and in the unit of the column's name.
    const csvText = (columns) => {
      const shown = columns.some(({ key }) => key === "devices") ? columns : [columns[0], field("devices"), ...columns.slice(1)];
      const names = ["result_id", ...shown.map(({ key }) => key)];
      const cells = (row) => [table.ids[row], ...shown.map((column) => valueOf(column, row))];
      return [names, ...found.rows.map(cells)].map((line) => line.map(csvCell).join(",")).join("\n") + "\n";
    };

    draw();
  };

  const csvCell = (value) => {
    if (value === null) return "";
    if (typeof value === "number") return String(value);
    const guarded = FORMULA.test(value) ? `'${value}` : value;
    return /[",\n]/.test(guarded) ? `"${guarded.replaceAll('"', '""')}"` : guarded;
  };

  const download = (text) => {
    const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    const link = el("a", { href: address, download: "tunemark-results.csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  };

  document.documentElement.dataset.explorer = ""; // hides the plain table before it is laid out
  root.hidden = false;
  root.textContent = "Loading the results.";
  const inTaskOfItsOwn = (value) => new Promise((go) => setTimeout(go, 0, value)); // a reader's touch comes between
  fetch(root.dataset.explorer)
    .then((answer) => {
      if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
      return answer.json();
    })
    .then(inTaskOfItsOwn).then(readTable).then(inTaskOfItsOwn).then(explore).then(() => {
      root.dataset.ready = "";
      performance.mark("tm-explorer-ready");
    })
    .catch((error) => {
      root.textContent = `The filters could not be loaded (${error.message}).`;
      root.style.minHeight = "0";
      delete document.documentElement.dataset.explorer;
      console.error(error);
    });
})();
