// The home page: reads the form, keeps it in the address, and shows the answer. The choice and its words are translated from Python (script.py).
(() => {
  const { decoded, el, reader, unknownNames, visit } = globalThis.tunemarkCommon, { dict, make, object } = globalThis.tunemarkPython, { answer_html } = globalThis.tunemark.answer;
  const { OTHER_KEYS, config_fields, model_of_size, size_in_words } = globalThis.tunemark.any_model;
  const { instead_of, key_of_model, model_keys, not_modelled, with_memory } = globalThis.tunemark.names, { CONFIG_FIELDS, metal_bytes, model_contradictions } = globalThis.tunemark.cards;
  const { seconds_of, tokens_in_row, whole_number } = globalThis.tunemark.formats;
  const { OWN, Offer, Question, places_of, recommend } = globalThis.tunemark.recommendation, { with_software, with_stack } = globalThis.tunemark.recommendation_words;
  const { FAMILIES } = globalThis.tunemark.families, { Evidence, KnownRate, LOOPS, cautions, rates_for, rates_on_stack, usual_startup_s } = globalThis.tunemark.option_rates, { Effects, architecture_of } = globalThis.tunemark.throughput;
  // What Python computes with: cards with dictionaries, the fitted model, and its results.
  const prepared = (data) => {
    for (const card of Object.values(data.accelerators)) card.peak_tflops = dict(Object.entries(card.peak_tflops));
    const half = data.effects.covariance, covariance = half.map((row, at) => half.map((other, column) => (column <= at ? row[column] : other[at])));
    const effects = make(Effects, [], { ...data.effects, places: dict(Object.entries(data.effects.places)), covariance });
    const rows = (kind, table) => decoded(table).map((row) => make(kind, [], row));
    const evidence = make(Evidence, [], { effects, results: rows(KnownRate, data.results) });
    const names = dict(Object.values(data.accelerators).map(({ key, name }) => [key, name]));
    const keys = model_keys(Object.values(data.models)), limits = dict(Object.entries(data.limits));
    const cards = dict(Object.entries(data.accelerators));
    return { ...data, evidence, names, cards, keys, limits, offers: data.offers.map((offer) => make(Offer, [], offer)) };
  };

  // The model of a configuration, or by a size, a name, an alias or a variant of one.
  const CONFIG = "config.json";
  const parsed = (text) => {
    try {
      return JSON.parse(text, (_, value) => (value?.constructor === Object ? dict(Object.entries(value)) : value));
    } catch {
      throw new Error(`${CONFIG}: is no JSON; give the configuration that lies beside the weights`);
    }
  };
  const ofConfig = (index, text) => {
    const content = parsed(text), fields = object(config_fields(content, CONFIG, index.limits));
    const card = { ...fields, key: CONFIG, name: String(content.get("_name_or_path") || CONFIG).slice(0, 80), config: text };
    const problems = [...model_contradictions(card)].slice(0, 5).join("; "); // as many as Python lists
    if (problems) throw new Error(`${CONFIG}: ${problems}`);
    return card;
  };
  const modelOf = (index, text, config) => {
    try {
      if (config) return ofConfig(index, config);
      const sized = model_of_size(Object.values(index.models), text), key = key_of_model(index.keys, text.trim());
      if (sized) return { ...sized, name: size_in_words(sized, text) };
      const why = not_modelled(text) && `${not_modelled(text)}; ${instead_of(text)}`;
      if (key === null) throw new Error(`The model "${text}": ${why || `no card has it; choose one from the list, or give a size such as 13B or its ${CONFIG}`}`);
      return index.models[key];
    } catch ({ field: place, value, message }) {
      const known = value == null ? "" : `${JSON.stringify(value)}: `;
      throw Object.assign(new Error(place ? `${place === "--model" ? "The model" : place}: ${known}${message}` : message), { field: "model" });
    }
  };
  // In another currency the prices are converted before anything is computed, so that every figure of the answer has it.
  const answered = (index, model, question, rates, { code, rate } = { code: "USD", rate: 1 }, hardware = index.cards) => {
    const offers = rate === 1 ? index.offers : index.offers.map((offer) => make(Offer, [], { ...offer, usd_per_hour: offer.usd_per_hour * rate }));
    const page = index.models[model.key]?.name === model.name ? `models/${model.key}.html` : "";
    const answer = recommend(question, rates, offers), caution = cautions(model, question.sequence_length, question.tokens);
    const ratesWith = (stack, asked) => ((rates.others ??= {})[`${stack} ${asked.software} ${asked.accelerators}`] ??= rates_on_stack(stack, asked, model, hardware, offers, index.evidence)); // kept with the usual ones
    const html = answer_html(question, answer, with_software(question, answer, rates, offers, LOOPS, ratesWith), index.names, true, page, caution, with_stack(question, answer, offers, ratesWith));
    return code === "USD" ? html : html.replaceAll("$", `${code}\u00a0`);
  };
  globalThis.tunemarkHome = { answered, modelOf, prepared };

  const form = document.getElementById("tm-question");
  if (!form) return;
  const answerBox = document.getElementById("tm-answer");
  const OPTIONS = {
    devices: "number of accelerators", startup: "start-up time", trust: "evidence", kind: "prices", provider: "providers", accelerator: "accelerators",
    own: "own hardware", own_devices: "own hardware", own_memory: "own hardware", own_usd: "own hardware", watts: "own hardware", kwh: "own hardware",
  };

  // Field of the form -> its name in a sentence.
  const NAMES = {
    size: "The size of the data", length: "The sequence length", epochs: "The number of epochs", deadline: "The deadline", budget: "The budget",
    devices: "The number of accelerators", startup: "The start-up time", own_devices: "The number of your own accelerators",
    own_memory: "The memory of your Mac",
    own_usd: "The cost per hour", currency: "The currency", exchange: "The exchange rate", watts: "The power", kwh: "The price of electricity",
  };
  const optional = (parse) => (text) => (text.trim() === "" ? null : parse(text));
  const startup = (text) => (text.trim() === "0" ? 0 : seconds_of(text));
  const number = (fits, words) => (text) => {
    const value = Number(text);
    if (!fits(value)) throw new Error(`must be ${words}`);
    return value;
  };
  const above0 = number((value) => value > 0, "a number above 0"), from0 = number((value) => value >= 0, "a number of 0 or more");

  const field = (name) => form.elements.namedItem(name);
  const box = field("model"), list = document.getElementById("tm-models");
  const asked = (index) => modelOf(index, box.value, field("config").value);
  const chosen = (name) => [...form.querySelectorAll(`input[name="${name}"]:checked`)].map((box) => box.value);

  // Those that are selected and whose memory is within the limit. If none is left, an empty key, which no offer has.
  const accelerators = (index) => {
    const most = Number(field("memory").value || Infinity), marked = chosen("accelerator");
    if (most === Infinity) return marked;
    const known = Object.values(index.accelerators).filter(({ memory_gib: memory }) => memory && memory <= most).map(({ key }) => key);
    const within = known.filter((key) => !marked.length || marked.includes(key));
    return within.length ? within : [""];
  };

  // Reads a field; an error carries its name, so that the page can mark it.
  const read = (name, parse) => {
    const { value } = field(name);
    try {
      return parse(value);
    } catch (error) {
      throw Object.assign(new Error(`${NAMES[name]} is "${value}"; it ${error.message}.`), { field: name });
    }
  };

  // The hidden field, and so the address, keeps the keys of a configuration that count.
  const takeConfig = async (given) => {
    try {
      const text = typeof given === "string" ? given : given.size > 1e6 ? "too large" : await given.text();
      const { name } = modelOf(await load(), "", text), content = object(parsed(text)), part = { ...content, ...object(content.text_config ?? {}) };
      const keys = [...CONFIG_FIELDS.keys(), ...OTHER_KEYS];
      field("config").value = JSON.stringify(Object.fromEntries(keys.filter((key) => part[key] !== undefined).map((key) => [key, part[key]])));
      box.value = name;
      changed(box);
    } catch (error) {
      turn += 1;
      complain(error);
    }
  };

  const currency = () => {
    const code = read("currency", (text) => {
      if (!/^[A-Za-z]{3}$/.test(text)) throw new Error("must be three letters such as EUR");
      return text.toUpperCase();
    });
    return { code, rate: code === "USD" ? 1 : read("exchange", above0) };
  };
  // The cards, with the memory of the reader's own Mac: one chip is sold with several.
  const cardsOf = (index) => {
    const memory = read("own_memory", optional(above0)), card = index.accelerators[field("own").value];
    if (memory === null || !card) return index.cards;
    if (card.vendor !== "Apple") throw Object.assign(new Error("The memory can be given for Macs, whose chips are sold with several"), { field: "own_memory" });
    const mine = { ...with_memory(card, memory), key: card.key, usable_bytes: metal_bytes(memory * 2 ** 30) };
    return dict(Object.entries({ ...index.accelerators, [card.key]: mine }));
  };
  const questionOf = (index, model) => {
    const length = read("length", tokens_in_row);
    const size = read("size", whole_number) * (field("unit").value === "samples" ? length : 1);
    const own = [];
    if (field("own").value) {
      const hours = read("own_usd", optional(from0)), price = read("kwh", optional(from0)), key = field("own").value;
      const { name, tdp_w: limit, remarks: caution } = cardsOf(index).get(key);
      const devices = read("own_devices", whole_number);
      // The board power is known where no power is given.
      const watts = read("watts", from0) / devices || limit, electricity = ((watts * devices) / 1000) * price;
      if (price && !watts) throw Object.assign(new Error(`The power of ${name} is not known; give the watts, too.`), { field: "watts" });
      // Without a cost, which may be 0, the answer has a time but no rank.
      const cost = { usd_per_hour: hours + electricity, priced: hours !== null || price !== null };
      const owned = { accelerator: key, name, devices, provider: OWN, instance: name, kind: "owned", ...cost, provider_name: OWN, watts, watts_stated: read("watts", from0) > 0, caution };
      own.push(make(Offer, [], owned));
    }
    return make(Question, [], {
      method: field("method").value,
      tokens: size * read("epochs", whole_number),
      sequence_length: length,
      software: field("software").value,
      objective: field("objective").value,
      deadline_s: read("deadline", optional(seconds_of)),
      budget_usd: read("budget", optional(above0)),
      providers: chosen("provider"),
      accelerators: accelerators(index),
      kinds: chosen("kind").length ? chosen("kind") : ["on_demand"],
      most_devices: read("devices", optional(whole_number)),
      trust: field("trust").value,
      startup_s: read("startup", optional(startup)) ?? usual_startup_s(model),
      own,
    });
  };

  // The rates of the last model, sequence length and hardware: most changes of the form need no others.
  let last = {};
  const ratesOf = (index, model, question) => {
    const cards = cardsOf(index);
    const known = JSON.stringify([model.key, model.config, question.sequence_length, field("own").value, field("own_memory").value, places_of(question, index.offers)]);
    if (last.known !== known) last = { known, rates: rates_for(question, model, cards, index.offers, index.evidence) };
    return last.rates;
  };

  const show = (index, model, question) => {
    answerBox.innerHTML = answered(index, model, question, ratesOf(index, model, question), currency(), cardsOf(index));
    const alike = model.name.toLowerCase() === box.value.trim().toLowerCase();
    document.getElementById("tm-model-read").textContent = (model.config ? `Read from ${CONFIG}: ${architecture_of(model)}.` : alike ? "" : `Computed as ${model.name}.`);
  };

  // What Python refuses of a question -> the field of the form.
  const FIELDS = { sequence_length: "length", tokens: "size", deadline_s: "deadline", budget_usd: "budget", most_devices: "devices", startup_s: "startup" };
  const complain = ({ message, field: name }) => {
    const place = FIELDS[name] ?? name, text = name in FIELDS ? `${NAMES[place]}: ${message}` : message;
    const wrong = field(place);
    document.getElementById("tm-model-read").textContent = "";
    wrong?.setAttribute("aria-invalid", "true");
    if (wrong?.closest("details")) wrong.closest("details").open = true;
    answerBox.replaceChildren(el("p", { class: "tm-headline", role: "alert" }, `${text}${text.endsWith(".") ? "" : "."}`));
  };

  // The address holds what differs from the form as it was delivered.
  const initial = new Map();
  let unknown = "", names = ""; // what the address asks for and the form does not have, until the reader changes the form
  let ownMethod = false; // true once the reader, or the address, has chosen a method; until then it is the usual one of the model
  const state = () => {
    const values = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value !== "" && (name !== "method" || ownMethod)) values.append(name, value);
    return values;
  };
  const restore = (address) => {
    const wanted = new URLSearchParams(address);
    field("config").value = ""; // a reset of the form leaves hidden fields
    ownMethod = wanted.has("method");
    names = unknownNames(field);
    if (![...wanted.keys()].some((name) => field(name))) return;
    for (const box of form.querySelectorAll("input[type=checkbox]"))
      if (box.name !== "kind" || wanted.has("kind")) box.checked = wanted.getAll(box.name).includes(box.value);
    for (const [name, value] of wanted) {
      const found = field(name), boxes = [...form.querySelectorAll(`input[type=checkbox][name="${CSS.escape(name)}"]`)];
      const choices = found instanceof HTMLSelectElement ? [...found.options] : boxes;
      if (choices.length && !choices.some((each) => each.value === value)) {
        unknown = `The address asks for ${name} "${value}", which is not in the list; choose one above.`;
        continue;
      }
      if (found && !(found instanceof RadioNodeList) && found.type !== "checkbox") found.value = value;
    }
  };
  // Options that differ from the form as it was delivered are named while they are folded away.
  const tellOptions = () => {
    const now = state(), names = new Set();
    for (const each of form.querySelectorAll("details [name]"))
      if (now.getAll(each.name).join() !== new URLSearchParams(initial.get("state")).getAll(each.name).join())
        names.add(OPTIONS[each.name] ?? each.name);
    form.querySelector("summary span").textContent = names.size ? `Set: ${[...names].join(", ")}` : "";
  };
  let touched = null; // the field that the reader has changed last
  const remember = () => {
    tellOptions();
    const now = state().toString();
    visit(now === initial.get("state") ? "" : now, touched);
  };

  const load = reader("data/recommend.json", prepared);
  let turn = 0;
  const update = async () => {
    const mine = (turn += 1);
    for (const marked of form.querySelectorAll("[aria-invalid]")) marked.removeAttribute("aria-invalid");
    try {
      if (unknown) throw new Error(unknown);
      const index = await load();
      if (mine !== turn) return;
      // The name stands for a key of the address, but not while the reader types.
      if (document.activeElement !== box && Object.hasOwn(index.models, box.value)) box.value = index.models[box.value].name;
      const model = asked(index);
      if (!ownMethod) field("method").value = FAMILIES.get(model.family).encoder ? "full" : "lora";
      show(index, model, questionOf(index, model));
      if (names) answerBox.prepend(el("p", { role: "status" }, names));
    } catch (error) {
      if (mine === turn) complain(error);
    }
  };

  // What the reader has entered while this script was read.
  const files = form.querySelector("input[type=file]"), [file] = files.files, entered = () => new URLSearchParams(new FormData(form)).toString(), early = entered();
  form.reset();
  initial.set("state", state().toString());
  const isEarly = !location.search && early !== entered();
  restore(isEarly ? early : location.search);
  ownMethod &&= !isEarly || field("method").value !== "lora"; // as it was delivered
  tellOptions();
  form.addEventListener("submit", (event) => event.preventDefault());
  let waiting;
  const changed = (target) => {
    unknown = names = "";
    touched = target.name;
    clearTimeout(waiting);
    ownMethod ||= target.name === "method";
    waiting = setTimeout(() => {
      remember();
      update();
    }, 150);
  };

  // The field of the model: a list of the cards that have all words of the text in their names, in the pattern of an ARIA combobox.
  const bare = (text) => text.toLowerCase().replace(/[^a-z0-9]/g, "");
  const mark = (marked) => {
    for (const option of list.children) option.setAttribute("aria-selected", String(option === marked));
    marked?.scrollIntoView({ block: "nearest" });
    box.setAttribute("aria-activedescendant", marked?.id ?? "");
  };
  const close = () => {
    list.hidden = true;
    box.setAttribute("aria-expanded", "false");
    mark(null);
  };
  const open = async (text) => {
    const words = text.split(/[\s/_-]+/).map(bare), { models } = await load().catch(() => ({ models: {} }));
    const found = Object.values(models).filter(({ key, name, aliases }) => {
      const spelt = [key, name, ...aliases].map(bare).join(" ");
      return words.every((word) => spelt.includes(word));
    });
    list.replaceChildren(...found.map(({ key, name }) => el("span", { role: "option", id: `tm-model-${key}`, "aria-selected": "false" }, name)));
    list.hidden = !found.length || document.activeElement !== box;
    box.setAttribute("aria-expanded", String(!list.hidden));
  };
  const choose = (option) => {
    field("config").value = "";
    box.value = option.textContent;
    close();
    changed(box);
  };
  box.addEventListener("click", () => open(box.select() ?? ""));
  box.addEventListener("blur", close);
  box.addEventListener("keydown", async (event) => {
    const options = [...list.children], at = options.findIndex((option) => option.getAttribute("aria-selected") === "true");
    if (event.key === "Enter" && at >= 0) choose(options[at]);
    else if (event.key === "Enter" || event.key === "Escape") close();
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) await open("");
      mark([...list.children].at((event.key === "ArrowDown" ? at + 1 : Math.max(at, 0) - 1) % (list.children.length || 1)));
    }
  });
  list.addEventListener("mousedown", (event) => event.preventDefault());
  list.addEventListener("click", ({ target }) => target.role === "option" && choose(target));
  box.addEventListener("change", () => changed(box));
  box.addEventListener("paste", (event) => {
    const text = event.clipboardData.getData("text");
    if (!text.trim().startsWith("{")) return;
    event.preventDefault();
    takeConfig(text);
  });
  files.addEventListener("change", () => {
    if (files.files.length) takeConfig(files.files[0]);
    files.value = "";
  });
  for (const name of ["dragover", "dragleave", "drop"])
    form.addEventListener(name, (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      form.classList.toggle("tm-over", name === "dragover");
      if (name === "drop") takeConfig(event.dataTransfer.files[0]);
    });
  form.addEventListener("input", ({ target }) => {
    if (target === files) return;
    if (target === box) {
      field("config").value = "";
      open(box.value);
      // While a name is typed, it is not an error that it is incomplete.
      load().then((index) => asked(index) && changed(box)).catch(() => {});
    } else changed(target);
  });
  // The first question of a form is computed while the reader still enters it: its functions are compiled by then.
  const warmUp = () => load().then((index) => ratesOf(index, asked(index), questionOf(index, asked(index)))).catch(() => {});
  if (form.contains(document.activeElement)) warmUp();
  else form.addEventListener("focusin", warmUp, { once: true });
  addEventListener("popstate", () => {
    form.reset();
    unknown = "";
    restore(location.search);
    tellOptions();
    update();
  });
  const given = file ?? (box.value.trim().startsWith("{") && box.value), typing = document.activeElement === box;
  if (given) takeConfig(given);
  else if (location.search) update();
  else if (isEarly) (typing ? box.dispatchEvent(new Event("input", { bubbles: true })) : changed(box));
  else if (typing) open("");
})();
