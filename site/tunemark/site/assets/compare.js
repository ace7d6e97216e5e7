// The comparison page: its data is written by script_data/compare.sql, its arithmetic is here alone. It needs common.js.
(() => {
  const root = document.getElementById("tm-compare");
  if (!root) return;
  const DATA = new URL("../data/compare.json", document.currentScript.src);
  const FEWEST = 2, MOST = 4, SHOWN = 12;
  const DIFFERS = "differs", NOT_SEPARATED = "within error", NOT_KNOWN = "not known";
  const TIMES = "\u00d7", SINGLE_RUN = "one run";
  const NO_INTERVAL = "no interval: single run", OTHER_INTERVAL = "no interval";
  const RATES = ["tokens_per_s", "samples_per_s"];
  const WORK = {
    tokens_per_s: ["model", "method", "task", "sequence_length", "packing"],
    samples_per_s: ["model", "method", "task", "sequence_length", "packing", "dataset"],
  };
  const PEAKS = ["bf16", "fp16", "tf32", "fp32", "fp8"], USUAL_FORMAT = "bf16", SAME_WORK = 0.005, MOST_DIGITS = 5;
  const READINGS = "several readings";

  // Formats ------------------------------------------------------------------------------------------

  const { duration, el, flop, gib, percent, plain, significant, small, usd, whole } = globalThis.tunemarkCommon;
  const FORMATS = {
    duration,
    usd,
    percent,
    gib,
    number: plain,
    whole: (value) => String(whole(value)),
  };
  const one = (kind, value) => (FORMATS[kind] || significant)(value);
  const digitsOf = (low, high) => {
    for (let digits = 3; digits < MOST_DIGITS; digits += 1) {
      if (significant(low, digits) !== significant(high, digits)) return digits;
    }
    return MOST_DIGITS;
  };
  const interval = (low, high) => {
    const digits = digitsOf(low, high);
    return `${significant(low, digits)} to ${significant(high, digits)}`;
  };
  const times = (value, digits = 3) => `${significant(value, digits)}${TIMES}`;
  const shown = (kind, figure) => {
    if (!figure) return NOT_KNOWN;
    if (kind === "rate" && figure.low !== null && figure.high !== null) {
      return significant(figure.value, digitsOf(figure.low, figure.high));
    }
    return one(kind, figure.value);
  };

  // Data ----------------------------------------------------------------------------------------------

  const estimate = ([value, low, high]) => ({ value, low, high });
  const mapped = (object, change) => Object.fromEntries(Object.entries(object).map(([key, value]) => [key, change(value)]));

  // A property that a result does not have is not known.
  const decoded = (data) => {
    const unknown = { accelerator: null, precision: null, level: null, count: null, flop_per_s: null, recompute: null, runs: "", billed: "", objections: {} };
    const subjects = data.results.map((result) => ({
      ...unknown,
      ...result,
      figures: mapped(result.figures ?? {}, estimate),
    }));
    return {
      subjects: new Map(subjects.map((subject) => [subject.id, subject])),
      effects: mapped(data.effects, estimate),
      labels: new Map(Object.entries(data.labels)),
      cards: new Map(Object.entries(data.cards)),
      figures: data.figures,
      cardRows: data.card_rows,
    };
  };

  // Arithmetic ----------------------------------------------------------------------------------------

  const ratioOf = (first, other) => {
    const value = other.value / first.value;
    if ([first.low, first.high, other.low, other.high].includes(null) || Math.min(first.low, other.low) <= 0) {
      return { value, low: null, high: null, verdict: NOT_KNOWN };
    }
    const below = Math.hypot(Math.log(other.value / other.low), Math.log(first.high / first.value));
    const above = Math.hypot(Math.log(other.high / other.value), Math.log(first.value / first.low));
    const low = value * Math.exp(-below), high = value * Math.exp(above);
    return { value, low, high, verdict: low <= 1 && 1 <= high ? NOT_SEPARATED : DIFFERS };
  };

  const objectionsOf = (subject, key) => subject.objections[key] || [];

  const refusal = (first, other, key) => {
    for (const [name, subject] of [["it", other], ["that of A", first]]) {
      const objection = objectionsOf(subject, key).find(({ refuses }) => refuses);
      if (!objection) continue;
      if (!objection.reason) return `not compared: ${name} follows from an ${objection.verdict} figure`;
      return `not compared: ${objection.reason === READINGS ? `${name} is ambiguous` : `the audit calls ${name} ${objection.verdict}`}`;
    }
    return "";
  };

  const comparedRate = (first, other) => {
    const all = RATES.filter((key) => first.figures[key] && other.figures[key]);
    const clean = all.filter((key) => !refusal(first, other, key));
    const shared = clean.length ? clean : all;
    return shared.find((key) => first.figures[key].low !== null && other.figures[key].low !== null) || shared[0] || null;
  };

  const differ = (first, other, key) => {
    const before = first.conditions[key], after = other.conditions[key];
    return before !== undefined && after !== undefined && before !== after;
  };

  const factor = (conditions, value, basis, low = null, high = null) => ({ conditions, value, low, high, basis });

  const hardware = (first, other, known) => {
    const made = [];
    const used = [first, other].map(({ precision }) => (PEAKS.includes(precision) ? precision : null));
    const cards = [first, other].map(({ accelerator }) => known.cards.get(accelerator) || {});
    const name = used[0] || used[1] || USUAL_FORMAT;
    const [before, after] = cards.map((card) => card[`peak_${name}_tflops`]);
    if (first.accelerator !== other.accelerator && before && after) {
      let basis = `dense ${name} peaks of the cards, ${plain(after)} against ${plain(before)} TFLOP/s`;
      if (!used[0] && !used[1]) basis += "; the number format is not stated";
      const bandwidths = cards.map((card) => card.memory_bandwidth_gb_s);
      if (bandwidths[0] && bandwidths[1]) basis += `; ${times(bandwidths[1] / bandwidths[0])} if memory bandwidth is the limit`;
      made.push(factor(["accelerator"], after / before, basis));
    }
    const [slow, fast] = used.map((format) => (format ? cards[1][`peak_${format}_tflops`] : null));
    if (used[0] !== used[1] && slow && fast) {
      const basis = `dense peaks of one card, ${used[1]} ${plain(fast)} and ${used[0]} ${plain(slow)} TFLOP/s`;
      made.push(factor(["precision"], fast / slow, basis));
    }
    return made;
  };

  const devices = (first, other, known) => {
    if (!first.count || !other.count || first.count === other.count) return null;
    const ratio = other.count / first.count;
    const slope = known.effects["slope: devices doubled"];
    if (!slope) return factor(["accelerator_count"], ratio, "number of devices, if scaling is linear");
    const percent = significant(100 * (slope.value - 1), 2);
    const basis = `number of devices; each doubling costs ${percent}% of time per token in the throughput model`;
    return factor(["accelerator_count"], ratio * slope.value ** -Math.log2(ratio), basis);
  };

  const work = (first, other, rate) => {
    if (!first.flop_per_s || !other.flop_per_s) return null;
    const before = first.flop_per_s / first.figures[rate].value, after = other.flop_per_s / other.figures[rate].value;
    const differing = WORK[rate].filter((key) => differ(first, other, key));
    if (!differing.length && Math.abs(after / before - 1) < SAME_WORK) return null;
    const unit = rate === "tokens_per_s" ? "token" : "sample";
    return factor(differing.length ? differing : ["work"], before / after, `model FLOPs per ${unit}, ${flop(after)} against ${flop(before)}`);
  };

  const recomputation = (first, other) => {
    const key = "gradient_checkpointing", before = first.recompute, after = other.recompute;
    if (before === null || after === null || (before === after && !differ(first, other, key))) return null;
    const basis = `model FLOPs with recomputed ones, ${times(after, 3)} against ${times(before, 3)} of those without`;
    return factor([key], before / after, basis);
  };

  const software = (first, other, known) => {
    const [before, after] = [first, other].map(({ level }) => known.effects[`level: ${level}`]);
    if (first.level === other.level || !before || !after) return null;
    const ratio = ratioOf(after, before);
    const basis = `mean effect of ${other.level} and ${first.level} software in the throughput model, 90% interval`;
    return factor(["level"], ratio.value, basis, ratio.low, ratio.high);
  };

  const factors = (first, other, rate, known) =>
    [...hardware(first, other, known), devices(first, other, known), work(first, other, rate), recomputation(first, other), software(first, other, known)]
      .filter(Boolean)
      .sort((a, b) => Math.abs(Math.log(b.value)) - Math.abs(Math.log(a.value)));

  // Views ---------------------------------------------------------------------------------------------

  const label = (known, key) => known.labels.get(key) || key;

  const noInterval = (first, other) => (first.runs && other.runs ? OTHER_INTERVAL : NO_INTERVAL);

  const singleRun = (first, other) => [first.runs, other.runs].includes(SINGLE_RUN);

  const ratioText = (ratio, first, other, intervalIsUsual) => {
    if (ratio.low === null) return times(ratio.value) + (intervalIsUsual ? `, ${noInterval(first, other)}` : "");
    const verdict = ratio.verdict + (singleRun(first, other) ? ", single run" : "");
    return `${times(ratio.value, digitsOf(ratio.low, ratio.high))} (${interval(ratio.low, ratio.high)}), ${verdict}`;
  };

  const intervalText = (kind, figure, runs) => {
    if (!figure || figure.low === null || figure.high === null) return "";
    const ends = kind === "rate" ? interval(figure.low, figure.high) : `${one(kind, figure.low)} to ${one(kind, figure.high)}`;
    return runs ? `${ends}, ${runs}` : ends;
  };

  const warningsOf = (subject, known) =>
    known.figures
      .map((spec) => [spec.label, objectionsOf(subject, spec.key).filter((objection) => objection.reason)])
      .filter(([, objections]) => objections.length)
      .map(([name, objections]) => ({ id: subject.id, label: name, text: objections.map((objection) => `${objection.verdict}, ${objection.reason}`).join("; ") }));

  const figureRow = (spec, subjects) => {
    const first = subjects[0].figures[spec.key];
    const cells = subjects.map((subject, place) => {
      const figure = subject.figures[spec.key];
      const refused = place && first && figure ? refusal(subjects[0], subject, spec.key) : "";
      const ratio = place && first && figure && !refused ? ratioOf(first, figure) : null;
      return {
        text: shown(spec.kind, figure),
        mark: objectionsOf(subject, spec.key)[0]?.verdict || "",
        small: [intervalText(spec.kind, figure, subject.runs), figure && spec.kind === "usd" ? subject.billed : ""].filter(Boolean).join("; "),
        ratio,
        ratio_text: ratio ? ratioText(ratio, subjects[0], subject, spec.interval) : refused,
      };
    });
    return { key: spec.key, label: spec.label, cells };
  };

  const factorText = (item) =>
    item.low === null ? times(item.value) : `${times(item.value)} (${significant(item.low)} to ${significant(item.high)})`;

  const figureLabel = (known, key) => (known.figures.find((spec) => spec.key === key) || { label: key }).label;

  const sentence = (rate, observed, first, other, known) => {
    const name = figureLabel(known, rate);
    const what = singleRun(first, other) ? "single runs" : "rates";
    const verdict = {
      [DIFFERS]: `The ${what} differ: the interval excludes 1.`,
      [NOT_SEPARATED]: `The ${what} are not separated: the interval includes 1.`,
      [NOT_KNOWN]: `Significance is not known (${noInterval(first, other)}).`,
    }[observed.verdict];
    if (observed.low === null) return `${name}: ${times(observed.value)}. ${verdict}`;
    const digits = digitsOf(observed.low, observed.high);
    return `${name}: ${times(observed.value, digits)} (95% interval ${interval(observed.low, observed.high)}). ${verdict}`;
  };

  const summary = (expected, left) =>
    left === null
      ? "No expected effect is known, so the whole ratio is unexplained."
      : `Expected together: ${times(expected)}. Left unexplained: a factor of ${significant(left)}.`;

  const reason = (first, other, known) => {
    const rate = comparedRate(first, other);
    const empty = { id: other.id, title: other.title, rate: null, observed: null, sentence: "", items: [], left: null };
    if (!rate) {
      return { ...empty, sentence: "No rate to compare: tokens/s or samples/s must be known for both.", summary: "", caveat: "" };
    }
    const refused = refusal(first, other, rate);
    if (refused) return { ...empty, sentence: `${figureLabel(known, rate)} ${refused}.`, summary: "", caveat: "" };
    const observed = ratioOf(first.figures[rate], other.figures[rate]);
    const items = factors(first, other, rate, known);
    for (const item of items) {
      item.name = item.conditions.map((key) => label(known, key)).join(", ");
      item.text = factorText(item);
    }
    const expected = items.reduce((product, item) => product * item.value, 1);
    const left = items.length ? observed.value / expected : null;
    const caveat =
      observed.low !== null && singleRun(first, other)
        ? "An interval here covers one run only; repeats of a run vary more."
        : "";
    return { ...empty, rate, observed, sentence: sentence(rate, observed, first, other, known), items, left, summary: summary(expected, left), caveat };
  };

  const effectText = (key, item, first, other, known) => {
    const before = first.conditions[key], after = other.conditions[key];
    if (before === undefined || after === undefined) return before === after ? "" : "may differ";
    if (before === after) return "as in A";
    if (!item) return "effect not known";
    const together = item.conditions.filter((name) => name !== key).map((name) => label(known, name));
    return `expected ${times(item.value)}` + (together.length ? `, together with ${together.join(", ")}` : "");
  };

  const view = (subjects, known) => {
    const [first, ...others] = subjects;
    const reasons = others.map((other) => reason(first, other, known));
    const effects = reasons.map(({ items }) => new Map(items.flatMap((item) => item.conditions.map((key) => [key, item]))));
    const keys = [...known.labels.keys()].filter((key) => subjects.some((subject) => key in subject.conditions));
    const values = (key) => subjects.map((subject) => subject.conditions[key]);
    const differing = keys.filter((key) => new Set(values(key).filter((value) => value !== undefined)).size > 1);
    const partly = keys.filter((key) => !differing.includes(key) && values(key).includes(undefined));
    const size = (key) => Math.max(...effects.filter((effect) => effect.has(key)).map((effect) => Math.abs(Math.log(effect.get(key).value))));
    const explained = differing.filter((key) => effects.some((effect) => effect.has(key))).sort((a, b) => size(b) - size(a));
    const row = (key) => ({
      key,
      label: label(known, key),
      cells: values(key).map((value, place) => ({
        text: value || "not stated",
        small: place ? effectText(key, effects[place - 1].get(key), first, subjects[place], known) : "",
      })),
    });
    return {
      columns: subjects.map(({ id, title, trust, impossible }) => ({
        id, title, trust, note: impossible ? "the audit calls its rate or a condition impossible" : "",
      })),
      warnings: subjects.flatMap((subject) => warningsOf(subject, known)),
      figures: known.figures.filter((spec) => subjects.some((subject) => subject.figures[spec.key])).map((spec) => figureRow(spec, subjects)),
      differing: [...explained, ...differing.filter((key) => !explained.includes(key))].map(row),
      partly: partly.map(row),
      equal: keys.filter((key) => !differing.includes(key) && !partly.includes(key)).map((key) => ({ label: label(known, key), text: values(key)[0] })),
      reasons,
    };
  };

  const cardView = (keys, known) => {
    const cards = keys.map((key) => known.cards.get(key));
    const cell = (spec, card, place) => {
      const value = card[spec.key] ?? null, first = cards[0][spec.key];
      const notes = spec.key === "usd_per_hour" && value !== null ? [card.offer] : [];
      if (value !== null && card.unverified.includes(spec.key)) notes.push("unverified");
      const ratio = place && spec.kind !== "text" && spec.kind !== "whole" && value && first ? value / first : null;
      const text = value === null ? NOT_KNOWN : spec.kind === "text" ? value : [one(spec.kind, value), spec.unit].join(" ").trim();
      return { text, small: notes.join("; "), ratio, ratio_text: ratio === null ? "" : times(ratio) };
    };
    const rows = known.cardRows
      .filter((spec) => cards.some((card) => (card[spec.key] ?? null) !== null))
      .map((spec) => ({ label: spec.label, cells: cards.map((card, place) => cell(spec, card, place)) }));
    return { columns: keys.map((key, place) => ({ id: key, title: cards[place].name })), rows };
  };

  // Elements ----------------------------------------------------------------------------------------

  const letter = (place) => "ABCD"[place];
  const badge = (place) => el("span", { class: "tm-letter" }, letter(place));

  const headOf = (columns, corner, folder) =>
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, corner), ...columns.map((item, place) =>
      el("th", { scope: "col" }, badge(place), " ",
        el("a", { href: `${folder}/${encodeURIComponent(item.id)}.html` }, item.title),
        small(item.trust ? `${item.id}, ${item.trust}` : ""), item.note ? el("span", { class: "tm-mark" }, item.note) : null))));

  const shortHead = (columns, corner) =>
    el("thead", { class: "tm-short" }, el("tr", {}, el("th", { scope: "col" }, corner), ...columns.map((_, place) => el("th", { scope: "col" }, badge(place)))));

  const bodyOf = (rows) =>
    el("tbody", {}, ...rows.map((row) =>
      el("tr", { "data-key": row.key || null }, el("th", { scope: "row" }, row.label), ...row.cells.map((cell, place) =>
        el("td", { "data-letter": letter(place) }, cell.mark ? el("span", {}, cell.text, " ", el("span", { class: `tm-mark tm-is-${cell.mark}` }, cell.mark)) : cell.text, small(cell.small), small(cell.ratio_text, "tm-ratio"))))));

  const tableOf = (name, head, rows) =>
    el("div", { class: "tm-scroll", tabindex: "0", role: "region", "aria-label": name },
      el("table", { class: "tm-table tm-compare-table" }, el("caption", { class: "tm-unseen" }, name), head, bodyOf(rows)));

  const reasonOf = (item, place) =>
    el("section", { class: "tm-reason" },
      el("h4", {}, badge(place + 1), " compared with ", badge(0)),
      el("p", {}, item.sentence, item.caveat ? ` ${item.caveat}` : ""),
      item.items.length
        ? el("ul", {}, ...item.items.map((factored) => el("li", {}, el("strong", {}, factored.name), ": ", factored.text, small(factored.basis))))
        : null,
      item.summary ? el("p", {}, item.summary) : null);

  const folded = (title, node) => el("details", { class: "tm-more" }, el("summary", {}, title), node);

  const warningOf = ({ id, label: name, text }) =>
    el("p", {}, `${name} of `, el("a", { href: `results/${encodeURIComponent(id)}.html` }, id), `: ${text}`);

  const resultsOf = (made) => {
    const parts = made.warnings.length ? [el("div", { class: "tm-note tm-is-inconsistent", "data-compare-objections": true }, ...made.warnings.map(warningOf))] : [];
    parts.push(tableOf("Figures", headOf(made.columns, "Figure", "results"), made.figures));
    parts.push(el("h3", {}, "What explains the difference"), ...made.reasons.map(reasonOf));
    parts.push(el("h3", {}, "Conditions that differ"));
    parts.push(made.differing.length
      ? tableOf("Conditions that differ", shortHead(made.columns, "Condition"), made.differing)
      : el("p", {}, "No stated condition differs."));
    if (made.partly.length) {
      parts.push(folded(`${made.partly.length} not stated for every result`, tableOf("Conditions not stated for every result", shortHead(made.columns, "Condition"), made.partly)));
    }
    if (made.equal.length) {
      parts.push(folded(`${made.equal.length} equal conditions`, el("dl", { class: "tm-facts" }, ...made.equal.map((fact) => el("div", {}, el("dt", {}, fact.label), el("dd", {}, fact.text))))));
    }
    return parts;
  };

  // Choosing ------------------------------------------------------------------------------------------

  // A combobox with a list (ARIA 1.2): arrows move, Enter chooses, Escape closes.
  const chooser = (name, hint, entries, taken, choose) => {
    const id = `tm-choose-${name}`;
    const input = el("input", {
      id, type: "text", role: "combobox", autocomplete: "off", spellcheck: "false", placeholder: hint,
      "aria-expanded": "false", "aria-controls": `${id}-list`, "aria-autocomplete": "list",
    });
    const list = el("ul", { id: `${id}-list`, role: "listbox", "aria-label": `Matching ${name}`, hidden: true });
    const count = el("output", { for: id, class: "tm-quiet" });
    let active = -1, found = [];

    const close = () => {
      list.hidden = true;
      input.setAttribute("aria-expanded", "false");
      input.removeAttribute("aria-activedescendant");
      active = -1;
    };
    const activate = (place) => {
      active = place;
      [...list.children].forEach((option, index) => option.setAttribute("aria-selected", String(index === place)));
      if (place < 0) return;
      input.setAttribute("aria-activedescendant", list.children[place].id);
      list.children[place].scrollIntoView({ block: "nearest" });
    };
    const pick = (entry) => {
      input.value = "";
      count.textContent = "";
      close();
      choose(entry.id);
      input.focus();
    };
    const open = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const all = words.length ? entries.filter((entry) => !taken(entry.id) && words.every((word) => entry.text.includes(word))) : [];
      // Whole words first: "8" is a count of 8 before one of 128, and "lora" is not QLoRA.
      const wholeWords = (entry) => words.filter((word) => entry.words.has(word)).length;
      found = all.map((entry) => [entry, wholeWords(entry)]).sort((a, b) => b[1] - a[1]).slice(0, SHOWN).map(([entry]) => entry);
      list.replaceChildren(...found.map((entry, index) => {
        const option = el("li", { id: `${id}-${index}`, role: "option", "aria-selected": "false" }, entry.title, small(entry.small));
        option.addEventListener("pointerdown", (event) => { event.preventDefault(); pick(entry); });
        return option;
      }));
      count.textContent = !words.length ? "" : all.length > SHOWN ? `${SHOWN} of ${all.length} matches` : `${all.length} ${all.length === 1 ? "match" : "matches"}`;
      list.hidden = !found.length;
      input.setAttribute("aria-expanded", String(found.length > 0));
      activate(found.length ? 0 : -1);
      if (!found.length) input.removeAttribute("aria-activedescendant");
    };
    input.addEventListener("input", open);
    input.addEventListener("blur", close);
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { close(); return; }
      if ((event.key === "ArrowDown" || event.key === "ArrowUp") && found.length) {
        event.preventDefault();
        if (list.hidden) { open(); return; }
        activate((active + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length);
      } else if (event.key === "Enter") {
        event.preventDefault();
        if (!list.hidden && active >= 0) pick(found[active]);
      }
    });
    return { input, box: el("div", { class: "tm-combobox" }, input, list), count, label: el("label", { for: id }, `Add ${name === "results" ? "a result" : "an accelerator"}`) };
  };

  const start = (known) => {
    const texts = (parts) => parts.filter(Boolean).join(" ").replaceAll(TIMES, "x").replaceAll("\u00a0", " ").toLowerCase();
    const resultEntry = (subject) => {
      const { sequence_length: length, global_batch: batch } = subject.conditions;
      const details = [subject.id, length && `${length} tokens`, subject.precision, batch && `batch ${batch}`, subject.trust];
      return { id: subject.id, title: subject.title, small: details.filter(Boolean).join(", "), text: texts([subject.title, subject.accelerator, ...details]) };
    };
    const parts = [
      { name: "results", noun: "result", hint: "Id, model or accelerator", all: known.subjects, entry: resultEntry, title: (item) => item.title, render: (ids) => {
        const made = view(ids.map((id) => known.subjects.get(id)), known);
        return { made, nodes: resultsOf(made) };
      } },
      { name: "accelerators", noun: "accelerator", hint: "Name or vendor", all: known.cards, entry: (card, id) => ({
        id, title: card.name, small: [card.vendor, card.memory_gib && `${significant(card.memory_gib)} GiB`].filter(Boolean).join(", "), text: texts([card.name, card.vendor, id]),
      }), title: (item) => item.name, render: (ids) => {
        const made = cardView(ids, known);
        return { made, nodes: [tableOf("Accelerators", headOf(made.columns, "Card", "accelerators"), made.rows)] };
      } },
    ];
    const state = { results: [], accelerators: [] };
    const exampleIds = (root.dataset.example ?? "").split(",").filter((id) => known.subjects.has(id));
    const message = root.querySelector("[data-compare-message]");

    const link = () => {
      const ids = [...state.results, ...state.accelerators].map(encodeURIComponent);
      return ids.length ? `#${ids.join(",")}` : location.pathname + location.search;
    };
    const change = (name, ids) => {
      state[name] = ids;
      history.pushState(null, "", link());
      message.hidden = true;
      show();
    };

    const tell = (lines) => {
      message.replaceChildren(...lines.map((line) => el("p", {}, line)));
      message.hidden = !lines.length;
    };

    // An anchor of the page itself is no choice.
    const read = () => {
      const hash = location.hash.slice(1);
      if (hash && document.getElementById(hash)) return;
      const lines = [globalThis.tunemarkCommon.unknownNames(() => false)].filter(Boolean);
      state.results = [];
      state.accelerators = [];
      for (const token of new Set(hash.split(",").filter(Boolean))) {
        let id = token;
        try { id = decodeURIComponent(token); } catch { /* kept as written, and reported below */ }
        const part = parts.find(({ all }) => all.has(id));
        if (!part) lines.push(`No finished result and no accelerator has the id "${id}". Check the id on its page, or search below.`);
        else if (state[part.name].length < MOST) { if (!state[part.name].includes(id)) state[part.name].push(id); }
        else lines.push(`At most ${MOST} ${part.noun}s are compared; ${id} is left out.`);
      }
      tell(lines);
      show();
    };

    // The cards of the chosen results, if they are on different accelerators.
    const ofResults = () => {
      const keys = [...new Set(state.results.map((id) => known.subjects.get(id).accelerator))].filter((key) => known.cards.has(key));
      return keys.length >= FEWEST ? keys : [];
    };

    const show = () => {
      for (const part of parts) {
        const ids = state[part.name];
        part.chosen.replaceChildren(...ids.map((id, place) => {
          const title = part.title(part.all.get(id));
          const remove = el("button", { type: "button", "aria-label": `Remove ${id}` }, "\u00d7");
          remove.addEventListener("click", () => { change(part.name, state[part.name].filter((other) => other !== id)); part.control.input.focus(); });
          return el("li", {}, badge(place), " ", el("span", {}, title, part.name === "results" ? small(id) : null), remove);
        }));
        part.control.input.disabled = ids.length >= MOST;
        part.note.textContent = ids.length >= MOST ? `${MOST} of ${MOST} chosen. Remove one to add another.` : ids.length === 1 ? `Add at least one more ${part.noun}.` : "";
        const place = root.querySelector(`[data-compare="${part.name}"]`);
        const example = root.querySelector(`[data-compare-example="${part.name}"]`);
        if (example) example.hidden = state.results.length + state.accelerators.length > 0;
        const implied = part.name === "accelerators" && !ids.length ? ofResults() : [];
        // Without a choice, the first example of the page is compared.
        const usual = part.name === "results" && !state.results.length && !state.accelerators.length ? exampleIds : [];
        const compared = implied.length ? implied : usual.length ? usual : ids;
        const rendered = compared.length >= FEWEST ? part.render(compared) : { made: null, nodes: [] };
        place.replaceChildren(implied.length ? el("p", { class: "tm-quiet" }, "The accelerators of the chosen results.") : "", ...rendered.nodes);
        place.view = rendered.made;
      }
    };

    for (const part of parts) {
      const entries = [...part.all].map(([id, item]) => part.entry(item, id));
      for (const entry of entries) entry.words = new Set(entry.text.split(/[\s,()]+/));
      const taken = (id) => state[part.name].includes(id);
      part.control = chooser(part.name, part.hint, entries, taken, (id) => change(part.name, [...state[part.name], id]));
      part.chosen = el("ol", { class: "tm-chosen", "aria-label": `Chosen ${part.name}` });
      part.note = el("p", { class: "tm-quiet", role: "status" });
      root.querySelector(`[data-compare-chooser="${part.name}"]`).replaceChildren(
        part.chosen, el("div", { class: "tm-choose" }, part.control.label, part.control.box, part.control.count), part.note);
    }
    addEventListener("popstate", read);
    addEventListener("hashchange", read);
    read();
    root.dataset.ready = "";
  };

  fetch(DATA)
    .then((answer) => (answer.ok ? answer.json() : Promise.reject(new Error(String(answer.status)))))
    .then((data) => start(decoded(data)))
    .catch((error) => {
      const message = root.querySelector("[data-compare-message]");
      message.replaceChildren(el("p", {}, `The results could not be loaded (${error.message}). Reload the page to try again.`));
      message.hidden = false;
    });
})();
