// The home page: reads the form, keeps it in the address, and shows the answer. The choice and its words are translated from Python (script.py).
(() => {
  const { decoded, el } = globalThis.tunemarkCommon, { dict, make } = globalThis.tunemarkPython, { answer_html } = globalThis.tunemark.answer;
  const { seconds_of, whole_number } = globalThis.tunemark.formats;
  const { OWN, Offer, Question, places_of, recommend } = globalThis.tunemark.recommendation;
  const { Evidence, KnownRate, longest_row, rates_for } = globalThis.tunemark.option_rates, { Effects } = globalThis.tunemark.throughput;
  const form = document.getElementById("tm-question");
  if (!form) return;
  const answerBox = document.getElementById("tm-answer");
  const OPTIONS = {
    devices: "number of accelerators", startup: "start-up time", trust: "evidence", kind: "prices", provider: "providers", accelerator: "accelerators",
    own: "own hardware", own_devices: "own hardware", own_usd: "own hardware", watts: "own hardware", kwh: "own hardware",
  };

  // Field of the form -> its name in a sentence.
  const NAMES = {
    size: "The size of the data", length: "The row length", epochs: "The number of epochs", deadline: "The deadline", budget: "The budget",
    devices: "The number of accelerators", startup: "The start-up time", own_devices: "The number of your own accelerators",
    own_usd: "The cost per hour", watts: "The power", kwh: "The price of electricity",
  };
  const optional = (reader) => (text) => (text.trim() === "" ? null : reader(text));
  const startup = (text) => (text.trim() === "0" ? 0 : seconds_of(text));
  const number = (fits, words) => (text) => {
    const value = Number(text);
    if (!fits(value)) throw new Error(`must be ${words}`);
    return value;
  };
  const above0 = number((value) => value > 0, "a number above 0"), from0 = number((value) => value >= 0, "a number of 0 or more");

  const field = (name) => form.elements.namedItem(name);
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
  const read = (name, reader) => {
    const { value } = field(name);
    try {
      return reader(value);
    } catch (error) {
      throw Object.assign(new Error(`${NAMES[name]} is "${value}"; it ${error.message}.`), { field: name });
    }
  };

  const questionOf = (index) => {
    const length = read("length", whole_number);
    const size = read("size", whole_number) * (field("unit").value === "samples" ? length : 1);
    const own = [];
    if (field("own").value) {
      const hours = read("own_usd", from0);
      const power = read("watts", from0), electricity = (power / 1000) * read("kwh", from0);
      const key = field("own").value, { name, tdp_w: limit } = index.accelerators[key];
      const devices = read("own_devices", whole_number);
      const watts = power / devices || limit;
      // A cost of 0 means that it is unknown: the answer then has a time but no rank.
      const owned = { accelerator: key, name, devices, provider: OWN, instance: name, kind: "owned", usd_per_hour: hours + electricity, provider_name: OWN, watts };
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
      startup_s: read("startup", startup),
      own,
    });
  };

  // What Python computes with: cards with dictionaries, the fitted model, and its results.
  const prepared = (data) => {
    for (const card of Object.values(data.accelerators)) card.peak_tflops = dict(Object.entries(card.peak_tflops));
    const effects = make(Effects, [], { ...data.effects, places: dict(Object.entries(data.effects.places)) });
    const evidence = make(Evidence, [], { effects, results: decoded(data.results).map((row) => make(KnownRate, [], row)) });
    const names = dict(Object.values(data.accelerators).map(({ key, name }) => [key, name]));
    return { ...data, evidence, names, cards: dict(Object.entries(data.accelerators)), offers: data.offers.map((offer) => make(Offer, [], offer)) };
  };

  // The rates of the last model, row length and hardware: most changes of the form need no others.
  let last = {};
  const ratesOf = (index, question) => {
    const model = field("model").value;
    const known = JSON.stringify([model, question.sequence_length, places_of(question, index.offers)]);
    if (last.known !== known) last = { known, rates: rates_for(question, index.models[model], index.cards, index.offers, index.evidence) };
    return last.rates;
  };

  const show = (index, question) => {
    const rates = ratesOf(index, question), answer = recommend(question, rates, index.offers);
    const tuned = question.software === "plain" ? recommend(make(Question, [], { ...question, software: "tuned" }), rates, index.offers) : null;
    answerBox.innerHTML = answer_html(question, answer, tuned, index.names, index.workloads[field("model").value] ?? [], true);
  };

  // What Python refuses of a question -> the field of the form.
  const FIELDS = { sequence_length: "length", tokens: "size", deadline_s: "deadline", budget_usd: "budget", most_devices: "devices", startup_s: "startup" };
  const complain = ({ message, field: name }) => {
    const place = FIELDS[name] ?? name, text = name in FIELDS ? `${NAMES[place]}: ${message}` : message;
    const wrong = field(place);
    wrong?.setAttribute("aria-invalid", "true");
    if (wrong?.closest("details")) wrong.closest("details").open = true;
    answerBox.replaceChildren(el("p", { class: "tm-headline", role: "alert" }, `${text}${text.endsWith(".") ? "" : "."}`));
  };

  // The address holds what differs from the form as it was delivered.
  const initial = new Map();
  let unknown = ""; // what the address asks for and the form does not have, until the reader changes the form
  const state = () => {
    const values = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value !== "") values.append(name, value);
    return values;
  };
  const restore = () => {
    const asked = new URLSearchParams(location.search);
    if (![...asked.keys()].some((name) => field(name))) return;
    for (const box of form.querySelectorAll("input[type=checkbox]"))
      if (box.name !== "kind" || asked.has("kind")) box.checked = asked.getAll(box.name).includes(box.value);
    for (const [name, value] of asked) {
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
  const remember = () => {
    tellOptions();
    const now = state().toString();
    history.replaceState(null, "", now === initial.get("state") ? location.pathname : `?${now}`);
  };

  let fetched = null;
  const load = () => {
    fetched ??= fetch("data/recommend.json").then(async (response) => {
      if (!response.ok) throw new Error(`The data of this page cannot be read (${response.status}); reload the page.`);
      return prepared(await response.json());
    });
    return fetched.catch((error) => {
      fetched = null;
      throw error;
    });
  };

  let turn = 0, modelChanged = false;
  const update = async () => {
    const mine = (turn += 1);
    for (const marked of form.querySelectorAll("[aria-invalid]")) marked.removeAttribute("aria-invalid");
    try {
      if (unknown) throw new Error(unknown);
      const index = await load();
      if (mine !== turn) return;
      const longest = longest_row(index.models[field("model").value], index.evidence);
      // A model that reads shorter rows gets its longest ones.
      if (modelChanged && Number(field("length").value) > longest) {
        field("length").value = longest;
        remember();
      }
      modelChanged = false;
      show(index, questionOf(index));
    } catch (error) {
      if (mine === turn) complain(error);
    }
  };

  initial.set("state", state().toString());
  restore();
  tellOptions();
  form.addEventListener("submit", (event) => event.preventDefault());
  let waiting;
  form.addEventListener("input", ({ target }) => {
    unknown = "";
    modelChanged ||= target.name === "model";
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      remember();
      update();
    }, 150);
  });
  if (location.search) update();
})();
