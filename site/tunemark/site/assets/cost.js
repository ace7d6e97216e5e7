// The cost page: reads the forms, keeps them in the address, and shows the tables. Offers are chosen by a function of Python (script.py).
(() => {
  // Costs on a basis: selection, multiplication and division ------------------------------------------
  const { byParts, decoded, el, fixed, reader, significant, small, unknownNames, usd, visit } = globalThis.tunemarkCommon;
  const { HOURS_PER_YEAR, OwnedHardware } = globalThis.tunemark.owned_hardware, { OVERSIZED, cheapest_offer, current_prices } = globalThis.tunemark.cards;
  const OWN = "own", SPEED = "samples_per_s_per_usd_hour";

  const choose = (offers, { kind, provider }, units, instances = 1) => cheapest_offer(
    offers.filter((offer) => offer.kind === kind && (provider ? offer.provider === provider : offer.listed) && (instances === 1 || offer.fabric)), units);

  // The view `cost_seconds` has the time of rent for each figure.
  const figures = (result, hourly) => {
    const found = { [SPEED]: result.seconds_per_1k_samples && 1e3 / result.seconds_per_1k_samples / hourly };
    for (const [name, seconds] of Object.entries(result)) if (name.startsWith("seconds_per")) found[name.replace("seconds", "usd")] = seconds && (seconds / 3600) * hourly;
    return found;
  };

  const inOrder = (rows) => {
    const groups = new Map();
    for (const row of rows) {
      const key = JSON.stringify([row.model_name ?? "", row.method]);
      groups.set(key, [...(groups.get(key) ?? []), row]);
    }
    const placed = [];
    for (const [key, members] of groups) {
      const cheapest = members.map((row) => [[row.usd_per_1k_samples ?? Infinity, row.result_id], row]).sort((a, b) => byParts(a[0], b[0]));
      cheapest.forEach(([, row], place) => placed.push([[!JSON.parse(key)[0], place, -members.length, ...JSON.parse(key)], row]));
    }
    return placed.sort((a, b) => byParts(a[0], b[0])).map(([, row]) => row);
  };

  const priced = (results, prices, basis) => {
    const offers = new Map();
    for (const offer of current_prices(prices, basis.day)) offers.set(offer.accelerator, [...(offers.get(offer.accelerator) ?? []), offer]);
    const rows = [], chosen = new Map();
    for (const result of results) {
      const { accelerator, units, instances } = result, place = [accelerator, units, instances].join();
      if (!chosen.has(place)) chosen.set(place, basis.kind === OWN ? null : choose(offers.get(accelerator) ?? [], basis, units, instances));
      const offer = chosen.get(place);
      const hourly = instances * (basis.kind === OWN ? (basis.own[accelerator] ?? 0) * units : offer?.usd_per_hour ?? 0);
      if (hourly) rows.push({ ...result, ...figures(result, hourly), offer, usd_per_hour: hourly });
    }
    return inOrder(rows);
  };

  // Words ----------------------------------------------------------------------------------------------
  const NONE = "–";
  const words = (kind) => kind.replaceAll("_", "-");
  const counted = (number, what) => `${fixed(number, 0)} ${what}${number === 1 ? "" : "s"}`;

  // The page -------------------------------------------------------------------------------------------
  const form = document.getElementById("tm-cost-form");
  if (!form) return;
  const box = document.getElementById("tm-costs"), plain = document.getElementById("tm-costs-plain");
  const statusLine = document.getElementById("tm-cost-status");
  const ownForm = document.getElementById("tm-own-form"), ownBox = document.getElementById("tm-own");
  const forms = [form, ownForm].filter(Boolean);
  const PAGE = globalThis.matchMedia("(max-width: 600px)").matches ? 10 : 50; // a phone shows cards

  const value = (name) => forms.map((each) => each.elements.namedItem(name)).find(Boolean)?.value.trim() ?? "";

  const COLUMNS = [
    ["usd_per_1k_samples", "Per 1k samples"], ["usd_per_1m_tokens", "Per 1M tokens"],
    ["usd_per_epoch", "Per epoch"], ["usd_per_training", "Training"], ["usd_per_run", "Run"],
    [SPEED, "Samples/s per $/h"], ["usd_per_hour", "Price per hour"],
  ];
  const MEANINGS = {
    usd_per_training: "Training only, without loading and compiling.",
    usd_per_run: "End to end, with loading, compiling and evaluations.",
    [SPEED]: "Samples per second for each dollar of the hourly price.",
    usd_per_hour: "All instances that must be rented.",
  };
  // The figure that a card on a phone shows first, unless the table is sorted by another.
  const LEADING = ["usd_per_1k_samples", "usd_per_1m_tokens", "usd_per_training", "usd_per_run", "usd_per_epoch"];
  const state = { sort: "", descending: false, shown: PAGE, strange: "" }; // `strange`: what the address asks for and the forms do not have

  const basisOf = (data) => {
    const day = value("day");
    return {
      kind: value("kind"), provider: value("provider") || null, day: /^\d{4}-\d\d-\d\d$/.test(day) ? day : data.as_of,
      own: Object.fromEntries(Object.keys(data.accelerators).map((key) => [key, Number(value(`own-${key}`))]).filter(([, usdPerHour]) => usdPerHour > 0)),
    };
  };
  const described = (basis, data) => {
    if (basis.kind === OWN) return "at your own prices";
    return `at ${words(basis.kind)} prices of ${data.providers[basis.provider] ?? "the cheapest provider"}, in force on ${basis.day}`;
  };

  const figureCell = (row, [name, head], leading) => {
    const amount = row[name], show = name === SPEED ? significant : usd;
    const [low, high] = [row[`${name}_low`] ?? null, row[`${name}_high`] ?? null];
    return el("td", { class: name === leading ? "tm-num tm-cost-first" : "tm-num", "data-head": amount === null ? "" : head }, amount === null ? NONE : show(amount),
      low === null || high === null || amount === null ? null : small(`${show(low)} to ${show(high)}`));
  };
  const offerCell = ({ offer, accelerator, instances }, data) => {
    if (!offer) return el("td", { "data-head": "Offer" }, "own price");
    const count = instances > 1 ? `${instances} × ` : "";
    return el("td", { "data-head": "Offer" }, el("a", { href: `accelerators/${encodeURIComponent(accelerator)}.html#prices` }, `${count}${data.providers[offer.provider]} ${offer.instance}`),
      small([offer.region, offer.dated].filter(Boolean).join(", ")));
  };
  const tableRow = (row, data) => {
    const leading = state.sort && row[state.sort] !== null ? state.sort : LEADING.find((name) => row[name] !== null);
    const length = row.sequence_length === null ? "" : `, ${counted(row.sequence_length, "token")}`;
    return el("tr", {},
      el("th", { scope: "row" }, el("a", { href: `results/${encodeURIComponent(row.result_id)}.html` }, `${data.accelerators[row.accelerator]} × ${row.devices}`), small(row.result_id)),
      el("td", { "data-head": "Model" }, row.model_name ?? NONE, small(`${data.methods[row.method] ?? row.method}${length}`)),
      ...COLUMNS.map((column) => figureCell(row, column, leading)),
      offerCell(row, data),
      el("td", { "data-head": "Trust" }, el("span", { class: `tm-badge tm-is-${row.trust}` }, row.trust_label)));
  };

  const sorted = (rows) => {
    if (!state.sort) return rows;
    const sign = state.descending ? -1 : 1;
    const known = rows.filter((row) => row[state.sort] !== null).sort((a, b) => sign * (a[state.sort] - b[state.sort]));
    return [...known, ...rows.filter((row) => row[state.sort] === null)];
  };
  const head = ([name, text]) => {
    const current = state.sort === name, button = el("button", { type: "button" }, text);
    button.addEventListener("click", () => {
      state.descending = current ? !state.descending : name === SPEED;
      state.sort = name;
      remember(`${name} ${state.descending}`);
      show().then(() => box.querySelector(`[data-key="${name}"] button`)?.focus());
    });
    const direction = current ? (state.descending ? "descending" : "ascending") : null;
    return el("th", { scope: "col", class: "tm-num", "data-key": name, "aria-sort": direction, title: MEANINGS[name] ?? null }, button);
  };

  const show = async () => {
    const data = await load();
    const basis = basisOf(data), all = priced(data.results, data.prices, basis);
    const wanted = sorted(all.filter((row) => ["model", "method", "accelerator"].every((name) => {
      const chosen = value(name);
      return !chosen || row[name === "model" ? "model_name" : name] === chosen;
    })));
    const rented = basis.kind !== OWN;
    for (const label of form.querySelectorAll("[data-rented]")) label.hidden = !rented;
    form.querySelector("[data-own]").hidden = rented;
    statusLine.textContent = state.strange + (wanted.length
      ? `${counted(wanted.length, "result")} ${described(basis, data)}.${state.sort ? "" : " The cheapest of each model and method come first."}`
      : rented
        ? `No result has a cost ${described(basis, data)}. Choose another provider, kind or day.`
        : "Give the price of at least one accelerator with results.");
    const parts = [];
    if (wanted.length) {
      const body = el("tbody", {}, ...wanted.slice(0, state.shown).map((row) => tableRow(row, data)));
      parts.push(el("div", { class: "tm-table-box" }, el("div", { class: "tm-scroll", tabindex: "0", role: "region", "aria-label": "Costs on this basis" },
        el("table", { class: "tm-table tm-stacked tm-cost-table" }, el("caption", { class: "tm-unseen" }, "Costs on this basis"),
          el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Accelerator"), el("th", { scope: "col" }, "Model"), ...COLUMNS.map(head),
            el("th", { scope: "col" }, "Offer"), el("th", { scope: "col" }, "Trust"))),
          body))));
      if (wanted.length > state.shown) {
        const more = el("button", { type: "button", class: "tm-explorer-button" }, `Show more (${fixed(state.shown, 0)} of ${fixed(wanted.length, 0)})`);
        more.addEventListener("click", () => {
          const first = state.shown;
          state.shown += 4 * PAGE;
          show().then(() => box.querySelectorAll("tbody tr")[first]?.querySelector("a").focus());
        });
        parts.push(more);
      }
      parts.push(el("p", { class: "tm-quiet" }, el("a", { href: "data/costs.csv" }, "All costs on the default basis as CSV"), ". ",
        el("a", { href: "guide/definitions.html#cost" }, "How a cost is computed"), "."));
    }
    box.replaceChildren(...parts);
    box.hidden = false;
    plain.hidden = true;
  };

  // Own or rent ----------------------------------------------------------------------------------------
  const FACTS = ["purchase", "watts"];
  const NEEDED = {
    purchase: "the purchase price in USD", watts: "the watts", years: "the years", utilisation: "the utilisation in percent",
    electricity: "the price of electricity",
  };
  const NAMES = { purchase: "the purchase price", electricity: "the price of electricity", resale: "the resale price" };
  // Python names its own fields; the reader knows those of the form.
  const ownedMachine = (...figures) => {
    try {
      return new OwnedHardware(...figures);
    } catch ({ message }) {
      throw new Error(message.replace(/purchase|electricity|resale/g, (name) => NAMES[name]));
    }
  };
  const showOwned = async () => {
    if (!ownForm) return;
    const name = ownForm.elements.namedItem("hardware").selectedOptions[0].textContent;
    const empty = Object.keys(NEEDED).filter((each) => value(each) === "").map((each) => NEEDED[each]);
    if (empty.length) return ownBox.replaceChildren(el("p", { class: "tm-headline", role: "alert" }, `Enter ${empty.join(" and ")} of ${name}.`));
    const number = (name) => (value(name) === "" ? NaN : Number(value(name)));
    const devices = number("devices");
    if (!Number.isInteger(devices) || devices < 1) throw new Error("Give the number of accelerators as a whole number of 1 or more.");
    if (!(number("utilisation") > 0 && number("utilisation") <= 100)) throw new Error("The utilisation must be above 0 and at most 100%.");
    const resale = value("resale") === "" ? 0 : number("resale");
    const machine = ownedMachine(number("purchase"), number("years"), number("utilisation") / 100, number("watts"), number("electricity"), resale);
    const data = await load(), accelerator = value("hardware"), hourly = machine.hourly_usd();
    const current = current_prices(data.prices, data.as_of).filter((offer) => offer.accelerator === accelerator && offer.accelerator_count <= OVERSIZED * devices);
    const offers = [...new Set(current.map((offer) => offer.provider))]
      .map((provider) => choose(current, { kind: "on_demand", provider }, devices))
      .filter(Boolean)
      .sort((a, b) => byParts([a.usd_per_hour, a.provider], [b.usd_per_hour, b.provider]));
    const share = `${Number(value("utilisation"))}% of the year`;
    const parts = [el("p", { class: "tm-headline" }, `Owned: ${usd(hourly)} per hour of use at ${share}, including electricity of ${usd(machine.running_usd_per_hour)}.`)];
    if (!offers.length) parts.push(el("p", {}, `No on-demand offer has ${name} × ${devices} without renting more than twice as many.`));
    else {
      const line = (offer) => {
        const hours = machine.break_even_hours_per_year(offer.usd_per_hour), owns = hourly < offer.usd_per_hour;
        return el("tr", {},
          el("th", { scope: "row" }, `${data.providers[offer.provider]} ${offer.instance}`, small([`${offer.accelerator_count} per instance`, offer.region, offer.dated].filter(Boolean).join(", "))),
          el("td", { class: "tm-num", "data-head": "Rent per hour" }, usd(offer.usd_per_hour)),
          el("td", { class: "tm-num", "data-head": "Break-even hours per year" }, hours === null ? NONE : fixed(Math.ceil(hours), 0)),
          el("td", { class: "tm-num", "data-head": "Share of the year" }, hours === null ? NONE : `${significant((hours / HOURS_PER_YEAR) * 100)}%`),
          el("td", { "data-head": "Cheaper at this utilisation" }, hours === null ? "renting, at any utilisation" : owns ? "owning" : "renting"));
      };
      const heads = ["On-demand offer", "Rent per hour", "Break-even hours per year", "Share of the year", "Cheaper at this utilisation"];
      parts.push(el("div", { class: "tm-table-box" }, el("div", { class: "tm-scroll", tabindex: "0", role: "region", "aria-label": "Owned hardware and offers" },
        el("table", { class: "tm-table tm-stacked" }, el("caption", { class: "tm-unseen" }, "Owned hardware and offers"),
          el("thead", {}, el("tr", {}, ...heads.map((text, place) => el("th", { scope: "col", ...(place > 0 && place < 4 ? { class: "tm-num" } : {}) }, text)))),
          el("tbody", {}, ...offers.map(line))))));
      parts.push(el("p", { class: "tm-quiet" }, "One offer of each provider: its cheapest instance with enough accelerators, rented whole."));
    }
    return ownBox.replaceChildren(...parts);
  };

  // The address holds what differs from the forms as they were delivered.
  const entries = () => forms.flatMap((each) => [...new FormData(each)]);
  const initial = new Map(entries());
  const remember = (field) => {
    const values = new URLSearchParams();
    for (const [name, text] of entries()) if (text !== initial.get(name)) values.set(name, text);
    if (state.sort) values.set("sort", `${state.descending ? "-" : ""}${state.sort}`);
    visit(values.toString(), field);
  };
  const restore = () => {
    state.strange = unknownNames((name) => name === "sort" || forms.some((each) => each.elements.namedItem(name)));
    for (const [name, text] of new URLSearchParams(location.search)) {
      const found = forms.map((each) => each.elements.namedItem(name)).find(Boolean), key = text.replace(/^-/, "");
      const listed = name === "sort" ? COLUMNS.map(([column]) => column) : found instanceof HTMLSelectElement ? [...found.options].map((each) => each.value) : null;
      if (listed && !listed.includes(name === "sort" ? key : text)) state.strange += `The address asks for ${name} "${text}", which is not in the list. `;
      else if (name === "sort") [state.sort, state.descending] = [key, text.startsWith("-")];
      else if (found) found.value = text;
    }
  };

  const load = reader("data/cost.json", (data) => ({ ...data, prices: decoded(data.prices), results: decoded(data.results) }));
  const guarded = (update, place) => () => update().catch((error) => {
    place.replaceChildren(el("p", { class: "tm-headline", role: "alert" }, error.message));
    place.hidden = false;
  });
  const updates = new Map([[form, guarded(show, box)], [ownForm, guarded(showOwned, ownBox)]]);

  // Another accelerator brings its own purchase and watts, or none, unless the reader has given them.
  const factOf = (name) => {
    const known = ownForm.elements.namedItem("hardware").selectedOptions[0].dataset[name];
    return known ? `${Number(known) * (Number(value("devices")) || 1)}` : "";
  };
  const given = new Set();
  const fillFacts = () => {
    for (const name of FACTS) if (!given.has(name)) ownForm.elements.namedItem(name).value = factOf(name);
  };

  restore();
  if (ownForm) {
    const asked = new URLSearchParams(location.search);
    for (const name of FACTS) if (asked.has(name) && value(name) !== factOf(name)) given.add(name);
    if (asked.has("hardware") || asked.has("devices")) fillFacts();
    ownForm.addEventListener("input", ({ target }) => (["hardware", "devices"].includes(target.name) ? fillFacts() : given.add(target.name)));
  }
  for (const each of forms) {
    each.hidden = false;
    let waiting;
    each.addEventListener("submit", (event) => event.preventDefault());
    each.addEventListener("input", ({ target }) => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        [state.shown, state.strange] = [PAGE, ""];
        remember(target.name);
        updates.get(each)();
      }, 150);
    });
    updates.get(each)();
  }
  addEventListener("popstate", () => {
    for (const each of forms) each.reset();
    [state.sort, state.descending] = ["", false];
    restore();
    for (const update of updates.values()) update();
  });
})();
