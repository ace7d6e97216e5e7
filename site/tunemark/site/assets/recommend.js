// The recommendation of the home page. The first part repeats schema/recommendation.py and schema/recommendation_words.py,
// and a test compares both; the second part reads the form, keeps it in the address, and shows the answer. No dependencies.
(() => {
  // Numbers for readers ----------------------------------------------------------------------------
  const { byParts, decoded, el, estimated, fixed, gib, plain, significant, usd } = globalThis.tunemarkCommon;
  const HOUR = 3600;

  // The choice -------------------------------------------------------------------------------------
  const OBJECTIVES = ["cheapest", "fastest", "value"], NODES = [1, 2, 4, 8], FIRST = 5, SAME = 2, WORTH_SEVERAL = 300;
  const PROVEN = new Set(["direct", "near"]), MEASURED = new Set(["measured", "reproduced"]), OWN = "own hardware";
  const FIT = new Set(["fits", "probably", "ran"]), ALL_METHODS = ["full", "lora", "qlora"];

  const lengthClass = (length, rates) => {
    const known = [...new Set(rates.map((rate) => rate.sequence_length))].sort((a, b) => a - b);
    const found = known.find((each) => each >= length);
    if (found !== undefined) return found;
    const most = known.length ? `; the longest rows with rates have ${fixed(known.at(-1), 0)} tokens` : "";
    throw Object.assign(new Error(`There are no rates for rows this long${most}.`), { field: "length" });
  };

  const whyMissing = (rate, trust) => {
    if (rate.tokens_per_s === null) return rate.reason || "no data";
    if (trust !== "predicted" && rate.evidence !== "direct") return "no result of this model, method, row length and device count";
    if (trust === "measured" && !MEASURED.has(rate.trust)) return `only ${rate.trust} results`;
    return null;
  };

  const makeOption = (question, rate, offer, instances) => {
    const [seconds, secondsLow, secondsHigh] = [rate.tokens_per_s, rate.tokens_per_s_high, rate.tokens_per_s_low].map(
      (speed) => question.startup_s + question.tokens / speed
    );
    const perSecond = (offer.usd_per_hour * instances) / HOUR;
    const compared = [
      ["deadline", question.deadline_s, seconds, secondsHigh],
      ["budget", question.budget_usd, seconds * perSecond, secondsHigh * perSecond],
    ];
    const limits = compared.filter(([, limit, , high]) => limit !== null && high > limit).map(([name]) => name);
    const exceeds = compared.filter(([, limit, middle]) => limit !== null && middle > limit).map(([name]) => name);
    if (rate.memory === "tight") limits.push("memory");
    return {
      rate, offer, instances, limits, exceeds, devices: offer.devices * instances,
      seconds, seconds_low: secondsLow, seconds_high: secondsHigh,
      usd: seconds * perSecond, usd_low: secondsLow * perSecond, usd_high: secondsHigh * perSecond,
      rank_low: 0, rank_high: 0,
    };
  };

  const inOrder = (options, objective) => {
    if (!options.length) return [];
    const fastest = Math.min(...options.map((option) => option.seconds));
    const cheapest = Math.min(...options.map((option) => option.usd));
    const key = (option) => {
      let first = option.usd, second = option.seconds;
      if (objective === "fastest") [first, second] = [second, first];
      else if (objective === "value") first = Math.hypot(Math.log(option.seconds / fastest), Math.log(option.usd / cheapest));
      return [first, second, option.rate.needed_bytes ?? 0, option.offer.provider, option.offer.instance, option.rate.method];
    };
    return options.map((option) => [key(option), option]).sort((a, b) => byParts(a[0], b[0])).map(([, option]) => option);
  };

  const diverse = (options) => {
    const first = [], later = [], counts = new Map();
    for (const option of options) {
      const name = option.offer.accelerator, number = counts.get(name) ?? 0;
      if (first.length < FIRST && number < SAME) {
        counts.set(name, number + 1);
        first.push(option);
      } else later.push(option);
    }
    return [...first, ...later];
  };

  const withRanks = (options, objective) => {
    const pairs = options.map((option) =>
      objective === "fastest" ? [option.seconds_low, option.seconds_high] : [option.usd_low, option.usd_high]
    );
    return options.map((option, index) => {
      const [low, high] = pairs[index];
      return {
        ...option,
        rank_low: 1 + pairs.filter(([, other]) => other < low).length,
        rank_high: pairs.filter(([other]) => other <= high).length,
      };
    });
  };

  const elsewhere = (question, rates, offers, methods, length) => {
    const offered = new Set(offers.map((offer) => `${offer.accelerator}/${offer.devices}`));
    const found = { other_methods: new Set(), other_lengths: new Set(), other_software: new Set() };
    for (const rate of rates) {
      if (!offered.has(`${rate.accelerator}/${rate.devices}`) || whyMissing(rate, question.trust) !== null) continue;
      if (question.most_devices !== null && rate.devices > question.most_devices) continue;
      const differing = [
        ["other_methods", methods.includes(rate.method), rate.method],
        ["other_lengths", rate.sequence_length === length, rate.sequence_length],
        ["other_software", rate.software === question.software, rate.software],
      ].filter(([, same]) => !same);
      if (differing.length === 1) found[differing[0][0]].add(differing[0][2]);
    }
    return Object.fromEntries(Object.entries(found).map(([name, values]) => [name, [...values].sort((a, b) => (a < b ? -1 : 1))]));
  };

  const recommend = (question, rates, offers) => {
    const length = lengthClass(question.sequence_length, rates);
    const table = new Map();
    for (const rate of rates)
      if (rate.sequence_length === length && rate.software === question.software)
        table.set(`${rate.method}/${rate.accelerator}/${rate.devices}`, rate);
    const levels = new Map();
    for (const rate of rates)
      if (rate.sequence_length === length && rate.software !== question.software && whyMissing(rate, question.trust) === null) {
        const key = `${rate.method}/${rate.accelerator}/${rate.devices}`;
        levels.set(key, [...(levels.get(key) ?? []), rate.software]);
      }
    const methods = question.method === "any" ? [...new Set(rates.map((rate) => rate.method))].sort() : [question.method];
    const chosen = (offer) =>
      (!question.providers.length || question.providers.includes(offer.provider)) &&
      (!question.accelerators.length || question.accelerators.includes(offer.accelerator));
    const fewEnough = (offer) => question.most_devices === null || offer.devices <= question.most_devices;
    const atOtherPrices = (offer) => chosen(offer) && fewEnough(offer);
    const rented = offers.filter((offer) => question.kinds.includes(offer.kind) && chosen(offer));
    const options = [], tooLarge = new Map(), noData = new Map();
    const considered = [...question.own, ...rented];
    const quick = considered.some((offer) =>
      methods.some((method) => {
        const speed = table.get(`${method}/${offer.accelerator}/${offer.devices}`)?.tokens_per_s;
        return speed && question.tokens / speed < WORTH_SEVERAL;
      })
    );
    for (const offer of considered)
      for (const method of methods)
        for (const instances of offer.fabric ? NODES : NODES.slice(0, 1)) {
          const devices = offer.devices * instances;
          const rate = table.get(`${method}/${offer.accelerator}/${devices}`);
          if (!rate || (question.most_devices !== null && devices > question.most_devices)) continue;
          if (instances > 1 && quick) continue;
          const missing = whyMissing(rate, question.trust);
          if (missing === null) options.push(makeOption(question, rate, offer, instances));
          else {
            const fitting = rate.memory === "no" ? ALL_METHODS.filter((each) => FIT.has(table.get(`${each}/${offer.accelerator}/${devices}`)?.memory)) : [];
            const software = rate.memory === "no" ? [] : (levels.get(`${method}/${offer.accelerator}/${devices}`) ?? []).sort();
            const without = { accelerator: offer.accelerator, name: offer.name, method, devices, reason: missing, fitting, software, too_large: rate.memory === "no" };
            (rate.memory === "no" ? tooLarge : noData).set(JSON.stringify(without), without);
          }
        }
    const unpriced = options.filter((option) => !option.offer.usd_per_hour), found = options.length;
    options.splice(0, found, ...options.filter((option) => option.offer.usd_per_hour));
    const recommended = options.filter((option) => !option.limits.length);
    const ranked = diverse(inOrder(recommended, question.objective));
    const picks = {};
    if (ranked.length) for (const objective of OBJECTIVES) picks[objective] = ranked.indexOf(inOrder(recommended, objective)[0]);
    const proven = ranked.findIndex((option) => PROVEN.has(option.rate.evidence));
    if (proven >= 0) picks.proven = proven;
    return {
      sequence_length: length,
      ranked: withRanks(ranked, question.objective),
      may_exceed: inOrder(options.filter((option) => option.limits.length && !option.exceeds.length), question.objective),
      exceeding: inOrder(options.filter((option) => option.exceeds.length), question.objective),
      too_large: [...tooLarge.values()],
      unpriced: inOrder(unpriced, "fastest"),
      no_data: [...noData.values()],
      offers: considered.filter(fewEnough).length,
      other_kinds: considered.some(fewEnough) ? [] : [...new Set(offers.filter(atOtherPrices).map((offer) => offer.kind))].sort(),
      own_devices: Object.fromEntries(question.own.map(({ accelerator }) => {
        const usable = (rate) => rate.accelerator === accelerator && methods.includes(rate.method) && whyMissing(rate, question.trust) === null;
        const counts = [...table.values()].filter(usable).map((rate) => rate.devices);
        return [accelerator, [...new Set(counts)].sort((a, b) => a - b)];
      })),
      picks,
      ...(found || (tooLarge.size && !noData.size) ? { other_methods: [], other_lengths: [], other_software: [] } : elsewhere(question, rates, considered, methods, length)),
    };
  };

  // Words ------------------------------------------------------------------------------------------
  const states = ({ method, weight_format: stored }) => {
    if (method === "qlora") return "frozen weights in 4 bits";
    if (method === "lora") return `frozen weights in ${stored ?? "bf16"}`;
    return `weights, gradients and AdamW states in ${stored ?? "bf16"}${stored === "fp32" ? ", matrix products in fp16" : ""}`;
  };
  const KINDS_OF_EVIDENCE = { direct: "results", near: "similar results", predicted: "prediction" };
  const SHARDINGS = { ddp: "DDP", fsdp2: "FSDP2", zero2: "ZeRO-2", zero3: "ZeRO-3" };
  const METHODS = { full: "full fine-tuning", lora: "LoRA", qlora: "QLoRA" };
  const EVIDENCE = {
    direct: "of this model or one of the same shape, and of this method, row length and device count",
    near: "of this model or one of the same shape with this method on this accelerator, with another row length or device count",
  };
  const LIMITS = { deadline: "the deadline", budget: "the budget", memory: "the memory of the device" };
  const PICKS = { cheapest: "Cheapest", fastest: "Fastest", value: "Best value", proven: "Best with results" };
  const ORDER = "At most two of the first five options have the same accelerator. A range of ranks means that the 90% intervals overlap.";
  const NOT_INCLUDED = "Evaluation, saving, minimum billing and data transfer are not included.";
  const NAMED = 6, REASONS = 6;
  const HINT =
    "Each point is an option: filled with results of its own, open if predicted. " +
    "The line joins the options that no other beats in both time and cost.";

  const hardware = (option) => `${option.offer.name} × ${option.devices}`;
  const place = (option) =>
    option.offer.provider === OWN
      ? OWN
      : `${option.instances > 1 ? `${option.instances} × ` : ""}${option.offer.instance} at ${option.offer.provider_name}` +
        (option.offer.kind === "on_demand" ? "" : `, ${option.offer.kind.replaceAll("_", " ")}`);
  const hourly = (option) => `${usd(option.offer.usd_per_hour * option.instances)}/h`;
  const timeAndCost = (option) =>
    `about ${estimated(option.seconds)} (${estimated(option.seconds_low)} to ${estimated(option.seconds_high)}), ` +
    `about ${usd(option.usd)} (${usd(option.usd_low)} to ${usd(option.usd_high)})`;
  const evidence = ({ rate }) => {
    const same = rate.merged ? ` The evidence does not separate it from ${METHODS[rate.merged]}.` : "";
    if (!(rate.evidence in EVIDENCE)) return `Predicted: there is no accepted result of this model and method on this accelerator with this software.${same}`;
    return `Predicted for this plan from all accepted results, ${fixed(rate.results, 0)} of them ${EVIDENCE[rate.evidence]}.${same}`;
  };
  // Parts of a sentence; results are objects with their id, so that the page can link them.
  const disputedRates = ({ rate }) =>
    rate.disputed.flatMap(([id, speed, length], number) => [
      number ? ", " : "", { id }, ` (${significant(speed)} tokens/s${length === rate.sequence_length ? "" : ` at ${fixed(length, 0)} tokens`})`,
    ]);
  const disputed = (option) =>
    option.rate.disputed.length
      ? ["Not direct evidence, since the audit calls the rate suspicious: ", ...disputedRates(option), `; this answer assumes ${significant(option.rate.tokens_per_s)} tokens/s.`]
      : [];
  const configuration = ({ rate }) =>
    [
      METHODS[rate.method] ?? rate.method,
      states(rate),
      `micro-batch of ${rate.micro_batch} × ${fixed(rate.sequence_length, 0)} tokens`,
      { none: "no gradient checkpointing", full: "full gradient checkpointing" }[rate.checkpointing] ?? `${rate.checkpointing} gradient checkpointing`,
      ...(rate.sharding && rate.sharding !== "single" ? [SHARDINGS[rate.sharding] ?? rate.sharding] : []),
    ].join(", ");
  const amounts = (rate) => (rate.needed_bytes === null ? null : `${rate.memory === "ran" ? "estimate " : ""}${gib(rate.needed_bytes)} of ${gib(rate.memory_bytes)}`);
  const memory = ({ rate }) =>
    rate.needed_bytes === null ? "" : rate.memory === "ran" ? `was sufficient in an actual run with settings of its own; the ${amounts(rate).replace("estimate", "estimate for this plan is")}` : `${rate.memory}: ${amounts(rate)}`;

  const memoryOf = (option) => `Memory ${memory(option)} (${configuration(option)}).`;
  const notSeparated = ({ merged }) => (merged ? `not separated from ${METHODS[merged] ?? merged}` : "");
  const energy = ({ offer, devices, seconds }) => {
    if (offer.watts === null) return `Energy: the power limit of ${offer.name} is not known.`;
    const watts = `${plain(offer.watts)} W`, power = devices > 1 ? `${devices} accelerators with at most ${watts} each` : `at most ${watts}`;
    return `Energy: up to about ${significant((offer.watts * devices * seconds) / HOUR / 1000)} kWh (${power}; host and cooling not included).`;
  };

  const excess = (question, option) =>
    Math.max(...[[option.seconds, question.deadline_s], [option.usd, question.budget_usd]].filter(([, limit]) => limit !== null).map(([value, limit]) => value / limit));
  const withMethod = (question, option) => (question.method === "any" ? ` with ${METHODS[option.rate.method] ?? option.rate.method}` : "");
  const fittingIn = ({ fitting }) =>
    fitting.length ? `; ${fitting.map((method) => METHODS[method] ?? method).join(" and ")} ${fitting.length === 1 ? "fits" : "fit"}` : "";
  const reasonOf = ({ reason, software }) => (software.length ? `${reason}; there are rates with ${software.join(" or ")} software` : reason);
  const isOffer = (offer) => (option) => option.offer === offer;
  const ownHardware = (question, answer) =>
    question.own.map((offer) => {
      const name = `Your ${offer.name} × ${offer.devices}`, place = answer.ranked.findIndex(isOffer(offer));
      const other = [...answer.may_exceed, ...answer.exceeding].find(isOffer(offer));
      const missing =
        [...answer.too_large, ...answer.no_data].find((each) => each.accelerator === offer.accelerator && each.devices === offer.devices) ??
        answer.no_data.filter((each) => each.accelerator === offer.accelerator).map((each) => ({ ...each, software: [] }))[0];
      const timed = answer.unpriced.find(isOffer(offer));
      if (timed) {
        const time = `about ${estimated(timed.seconds)} (${estimated(timed.seconds_low)} to ${estimated(timed.seconds_high)})`;
        return `${name}${withMethod(question, timed)}: ${time}. ${memoryOf(timed)} It is ranked if you give its cost per hour (above $0).`;
      }
      if (place >= 0) {
        const option = answer.ranked[place];
        return `${name}: place ${place + 1} of ${answer.ranked.length}${withMethod(question, option)}, ${timeAndCost(option)}.${place ? ` ${memoryOf(option)}` : ""}`;
      }
      if (other) {
        const limits = [...new Set([...other.exceeds, ...other.limits])].map((limit) => LIMITS[limit]).join(" and ");
        return `${name}: may exceed ${limits}, ${timeAndCost(other)}.`;
      }
      const known = (answer.own_devices[offer.accelerator] ?? []).join(" or ");
      const noRates = known ? `there are no rates for this number of devices, only for ${known}` : "there are no rates for this accelerator";
      return `${name}: ${missing ? `${reasonOf(missing)}${fittingIn(missing)}` : noRates}.`;
    });

  const headline = (question, answer) => {
    const best = answer.ranked[0];
    if (best) {
      const verb = best.offer.provider === OWN ? "Use" : "Rent", others = best.rank_high - 1;
      const unsure = others > 0 ? ` The evidence does not separate it from ${others} other option${others > 1 ? "s" : ""}.` : "";
      return `${verb} ${hardware(best)} (${place(best)}, ${hourly(best)})${withMethod(question, best)}: ${timeAndCost(best)}.${unsure}`;
    }
    const nearest = (best, option) => (best && excess(question, best) <= excess(question, option) ? best : option);
    const closest = answer.may_exceed[0] ?? answer.exceeding.reduce(nearest, undefined);
    if (closest) {
      const limits = [...new Set([...closest.exceeds, ...closest.limits])].map((name) => LIMITS[name]).join(" and ");
      const verb = closest.exceeds.length ? "exceeds" : "may exceed";
      return `No option meets all limits. The closest, ${hardware(closest)} (${place(closest)}), ${verb} ${limits}: ${timeAndCost(closest)}.`;
    }
    if (answer.unpriced.length) return "No offer to rent can be recommended; the time on your own hardware is known.";
    if (!answer.offers) {
      const kinds = answer.other_kinds.map((kind) => kind.replaceAll("_", " ")).join(" or ");
      const others = kinds ? ` There are offers at ${kinds} prices.` : "";
      return `No offer matches these providers, kinds of price, accelerators and numbers of devices. Allow more of one of them.${others}`;
    }
    if (answer.too_large.length && !answer.no_data.length)
      return "Training does not fit in the memory of any accelerator offered. QLoRA, shorter rows and more devices need less memory per device.";
    const parts = answer.too_large.length ? "Training does not fit in the memory of some of the accelerators offered, and there is no similar result for the others." : "";
    const trusted = question.trust === "predicted" ? "" : " at this level of trust; allow predictions to see more";
    const known = [
      [answer.other_methods.map((method) => METHODS[method] ?? method), (names) => `for ${names}`],
      [answer.other_lengths.map((tokens) => fixed(tokens, 0)), (names) => `for rows of ${names} tokens`],
      [answer.other_software, (names) => `with ${names} software`],
    ].filter(([names]) => names.length).map(([names, words]) => words(names.join(" or "))).join(", or ");
    return `${parts || `No data: there is no similar result for any accelerator offered${trusted}.`}${known ? ` There are rates ${known}.` : ""}`;
  };

  const alternatives = (question, answer) =>
    Object.entries(answer.picks)
      .filter(([, number]) => number)
      .map(([pick, number]) => {
        const option = answer.ranked[number];
        return `${PICKS[pick]}: ${hardware(option)} (${place(option)}, ${hourly(option)})${withMethod(question, option)}, ${timeAndCost(option)}.`;
      });

  const changes = (question, answer) => {
    const best = answer.ranked[0], lines = [];
    if (!best) return lines;
    const next = answer.ranked.slice(1).find((option) => option.usd > best.usd && option.offer.accelerator !== best.offer.accelerator);
    if (question.objective === "cheapest" && next) {
      const price = (best.offer.usd_per_hour * best.instances * next.usd) / best.usd;
      lines.push(`${hardware(next)} (${place(next)}) becomes cheaper if ${hardware(best)} costs more than ${usd(price)}/h (now ${hourly(best)}).`);
    }
    lines.push(`With a deadline below ${estimated(best.seconds_high)} it may finish late.`);
    return lines;
  };
  const withTuned = (question, answer, tuned) => {
    const best = tuned.ranked[0], plainBest = answer.ranked[0];
    const better = best && !(plainBest && best.usd >= plainBest.usd && best.seconds >= plainBest.seconds);
    return better ? `With tuned software: ${hardware(best)} (${place(best)}, ${hourly(best)})${withMethod(question, best)}, ${timeAndCost(best)}.` : "";
  };
  const withoutOption = (answer, missing) => {
    const answered = new Set([...answer.ranked, ...answer.may_exceed].map((option) => option.offer.accelerator));
    return missing.filter((each) => !answered.has(each.accelerator));
  };
  const listed = (names, most = NAMED) => names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");
  const unknownOf = (answer) => {
    const reasons = new Map();
    const byName = new Map(withoutOption(answer, answer.no_data).map((each) => [each.name, reasonOf(each)]));
    for (const [name, reason] of byName) reasons.set(reason, [...(reasons.get(reason) ?? []), name]);
    const parts = [...reasons].slice(0, REASONS).map(([reason, names]) => `${listed(names)} (${reason})`);
    const others = [...reasons.values()].slice(REASONS).flat();
    return parts.length ? `No data: ${parts.join("; ")}${others.length ? `; ${listed(others)} (other reasons)` : ""}.` : "";
  };
  const notFitting = (answer) => {
    const key = (accelerator, devices) => `${accelerator}/${devices}`;
    const answered = new Set([...answer.ranked, ...answer.may_exceed].map((option) => key(option.offer.accelerator, option.rate.devices)));
    const most = new Map();
    for (const each of answer.too_large)
      if (!answered.has(key(each.accelerator, each.devices)) && !(most.get(each.name)?.devices >= each.devices)) most.set(each.name, each);
    const names = [...most].map(([name, { devices, reason }]) => `${name} × ${devices} (${reason.replace(/^does not fit: /, "")})`);
    return names.length ? `Does not fit: ${listed(names, 2 * NAMED)}.` : "";
  };
  const fillGap = (answer, workload) => (workload && unknownOf(answer) ? `To measure one of these: tunemark run ${workload}` : "");
  // The workload card of the model and the method whose rows have the nearest length.
  const workloadFor = (cards, question) =>
    (cards ?? []).filter(([, method]) => method === question.method)
      .map(([name, , length]) => [[Math.abs(Math.log(length / question.sequence_length)), name], name])
      .sort((a, b) => byParts(a[0], b[0]))[0]?.[1] ?? null;
  const startup = (question) =>
    question.startup_s ? `Includes an assumed ${estimated(question.startup_s)} of start-up.` : "Start-up is not included.";

  // The chart of time against cost, as in pages/home.py -------------------------------------------------
  const WIDTH = 640, HEIGHT = 300, LEFT = 64, RIGHT = 16, TOP = 14, BOTTOM = 40, MOST = 120, TICKS = 6;
  const TIMES = [[1, [1, 2, 5, 10, 30]], [60, [1, 2, 5, 10, 30]], [HOUR, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]]].flatMap(
    ([unit, counts]) => counts.map((number) => number * unit)
  );
  const COSTS = Array.from({ length: 12 }, (_, index) => [1, 2, 5].map((digit) => digit * 10 ** (index - 4))).flat();
  const front = (options) => {
    const kept = [];
    for (const option of [...options].sort((a, b) => a.seconds - b.seconds || a.usd - b.usd))
      if (!kept.length || option.usd < kept.at(-1).usd) kept.push(option);
    return kept;
  };
  const ticks = (values, low, high) => {
    const inside = values.filter((value) => low <= value && value <= high);
    const stride = Math.ceil(inside.length / TICKS) || 1;
    return inside.filter((_, index) => index % stride === 0);
  };
  const short = (value) => (value >= HOUR ? `${value / HOUR} h` : value >= 60 ? `${value / 60} min` : `${value} s`);
  const dollars = (value) => (value >= 1 ? `$${fixed(value, 0)}` : `$${Number(value.toPrecision(4))}`);

  const drawn = (ranked) => {
    const first = ranked.slice(0, MOST);
    return [...first, ...front(ranked).filter((option) => !first.includes(option))];
  };
  // Parts are [name, attributes, text, title]; the page makes elements of them, so that no text becomes markup.
  const chartParts = (ranked) => {
    const options = drawn(ranked);
    if (options.length < 2) return [];
    const times = options.map((option) => option.seconds), costs = options.map((option) => option.usd);
    const [xLow, xHigh, yLow, yHigh] = [Math.min(...times) / 1.2, Math.max(...times) * 1.2, Math.min(...costs) / 1.2, Math.max(...costs) * 1.2];
    const x = (value) => (LEFT + ((WIDTH - LEFT - RIGHT) * Math.log(value / xLow)) / Math.log(xHigh / xLow)).toFixed(1);
    const y = (value) => (TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.log(value / yLow) / Math.log(yHigh / yLow))).toFixed(1);
    const parts = [];
    for (const value of ticks(TIMES, xLow, xHigh)) {
      parts.push(["line", { class: "tm-grid", x1: x(value), x2: x(value), y1: TOP, y2: HEIGHT - BOTTOM }]);
      parts.push(["text", { x: x(value), y: HEIGHT - BOTTOM + 15, "text-anchor": "middle" }, short(value)]);
    }
    for (const value of ticks(COSTS, yLow, yHigh)) {
      parts.push(["line", { class: "tm-grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }]);
      parts.push(["text", { x: LEFT - 6, y: y(value), dy: 4, "text-anchor": "end" }, dollars(value)]);
    }
    parts.push(["text", { x: WIDTH - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, "time, start-up included"]);
    parts.push(["text", { x: LEFT - 6, y: HEIGHT - 6, "text-anchor": "end" }, "cost"]);
    parts.push(["polyline", { class: "tm-front", points: front(options).map((option) => `${x(option.seconds)},${y(option.usd)}`).join(" ") }]);
    for (const option of options)
      parts.push([
        "circle", { class: PROVEN.has(option.rate.evidence) ? "tm-proven" : "tm-predicted", cx: x(option.seconds), cy: y(option.usd), r: 4 },
        "", `${hardware(option)} (${place(option)}): ${estimated(option.seconds)}, ${usd(option.usd)}`,
      ]);
    const ends = front(options);
    for (const option of new Set([ends[0], ends.at(-1), options[0]])) {
      const [textX, high] = [x(option.seconds), option.usd > Math.sqrt(yLow * yHigh)];
      const anchor = Number(textX) > WIDTH / 2 ? "end" : "start";
      parts.push(["text", { class: "tm-name", x: textX, y: y(option.usd), dx: anchor === "start" ? 6 : -6, dy: high ? -9 : 17, "text-anchor": anchor }, hardware(option)]);
    }
    return parts;
  };
  const chartOf = (ranked) => {
    const parts = chartParts(ranked);
    if (!parts.length) return null;
    const make = (name, attributes, text = "") => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      made.append(text);
      return made;
    };
    const number = drawn(ranked).length;
    const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Time against cost of ${number} options, both axes logarithmic` });
    for (const [name, attributes, text, title] of parts) {
      const made = make(name, attributes, text);
      if (title) made.append(make("title", {}, title));
      svg.append(made);
    }
    return svg;
  };

  globalThis.tunemark = { chartOf, fillGap, workloadFor, ownHardware, notFitting, unknownOf, recommend, headline, alternatives, changes, withTuned, decoded, disputed, energy, evidence, memory, configuration };

  // The page ---------------------------------------------------------------------------------------
  const form = document.getElementById("tm-question");
  if (!form) return;
  const answerBox = document.getElementById("tm-answer");
  const SHOWN = 10;
  const OPTIONS = {
    devices: "number of accelerators", startup: "start-up time", trust: "evidence", kind: "prices", provider: "providers", accelerator: "accelerators",
    own: "own hardware", own_devices: "own hardware", own_usd: "own hardware", watts: "own hardware", kwh: "own hardware",
  };

  const count = (text) => {
    const match = /^(\d[\d,_]*\.?\d*)\s*([kmbgt]?|thousand|million|billion|trillion)$/i.exec(text.trim());
    if (!match) throw new Error(`The size of the data, "${text}", is not a number; give one such as 10M, with k, M or B for thousands, millions or billions.`);
    const sizes = { "": 1, k: 1e3, m: 1e6, b: 1e9, g: 1e9, t: 1e12, thousand: 1e3, million: 1e6, billion: 1e9, trillion: 1e12 };
    const value = Math.round(Number(match[1].replace(/[,_]/g, "")) * sizes[match[2].toLowerCase()]);
    if (!(value >= 1)) throw new Error("The size of the data must be 1 or more.");
    return value;
  };
  const time = (text) => {
    const compact = text.replace(/\s/g, "").toLowerCase(), units = { s: 1, m: 60, h: HOUR, d: 86400 };
    const parts = [...compact.matchAll(/(\d+(?:\.\d+)?)(seconds?|minutes?|min|hours?|days?|s|m|h|d)/g)];
    if (!parts.length || parts.map(([whole]) => whole).join("") !== compact)
      throw new Error(`"${text}" is not a time; give a number with its unit, such as 90min, 2h or 1.5d.`);
    return parts.reduce((sum, [, number, unit]) => sum + Number(number) * units[unit[0]], 0);
  };
  const optional = (reader) => (text) => (text.trim() === "" ? null : reader(text));
  const positive = (name) => (text) => {
    const value = Number(text);
    if (!(value > 0)) throw new Error(`${name} is "${text}"; it must be a number above 0.`);
    return value;
  };

  const field = (name) => form.elements.namedItem(name);
  const chosen = (name) => [...form.querySelectorAll(`input[name="${name}"]:checked`)].map((box) => box.value);

  // Those that are selected and whose memory is within the limit. If none is left, an empty key, which no offer has.
  const accelerators = (index) => {
    const most = Number(field("memory").value || Infinity), marked = chosen("accelerator");
    if (most === Infinity) return marked;
    const within = Object.keys(index.memory_gib).filter((key) => index.memory_gib[key] <= most && (!marked.length || marked.includes(key)));
    return within.length ? within : [""];
  };

  // Reads a field; an error carries its name, so that the page can mark it.
  const read = (name, reader) => {
    try {
      return reader(field(name).value);
    } catch (error) {
      throw Object.assign(error, { field: name });
    }
  };

  const questionOf = (index) => {
    const length = read("length", positive("The row length"));
    const size = read("size", count) * (field("unit").value === "samples" ? length : 1);
    const own = [];
    if (field("own").value) {
      const hours = Number(field("own_usd").value || 0);
      const electricity = (Number(field("watts").value || 0) / 1000) * Number(field("kwh").value || 0);
      const key = field("own").value, name = index.accelerators[key];
      const devices = read("own_devices", positive("The number of your own accelerators"));
      own.push({
        accelerator: key, name, devices, provider: OWN, instance: name, kind: "owned",
        usd_per_hour: hours + electricity, // 0 means that the cost is unknown: the answer then has a time but no rank
        region: null, effective_on: null, fabric: false, provider_name: OWN, watts: Number(field("watts").value || 0) / devices || (index.watts[key] ?? null),
      });
    }
    return {
      method: field("method").value,
      tokens: size * read("epochs", positive("The number of epochs")),
      sequence_length: length,
      software: field("software").value,
      objective: field("objective").value,
      deadline_s: read("deadline", optional(time)),
      budget_usd: read("budget", optional(positive("The budget"))),
      providers: chosen("provider"),
      accelerators: accelerators(index),
      kinds: chosen("kind").length ? chosen("kind") : ["on_demand"],
      most_devices: read("devices", optional(positive("The number of devices"))),
      trust: field("trust").value,
      startup_s: read("startup", (text) => (["", "0"].includes(text.trim()) ? 0 : time(text))),
      own,
    };
  };

  const linked = (part) => (part.id ? el("a", { href: `results/${part.id}.html` }, part.id) : part);
  const resultLinks = (rate) => rate.result_ids.slice(0, 3).flatMap((id, number) => [number ? ", " : "", linked({ id })]);

  // The parts of a line, with each name of an accelerator linked to its page, as in pages/home.py.
  const withLinks = (line, accelerators) => {
    const keys = new Map(Object.entries(accelerators).map(([key, name]) => [name, key]));
    const names = [...keys.keys()].sort((a, b) => b.length - a.length).map((name) => name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    return line
      .split(new RegExp(`(?<![\\w.-])(${names.join("|")})(?![\\w.-])`))
      .map((part) => (keys.has(part) ? el("a", { href: `accelerators/${keys.get(part)}.html` }, part) : part));
  };

  const paragraph = (...children) => el("p", {}, ...children);
  const cell = (head, main, small = null, kind = "") =>
    el("td", { "data-head": head, ...(kind ? { class: kind } : {}) }, main, small ? el("small", {}, ...[small].flat()) : null);

  const row = (option, question) => {
    const { rate } = option;
    const rank = option.rank_low ? (option.rank_low === option.rank_high ? `${option.rank_low}` : `${option.rank_low} to ${option.rank_high}`) : "–";
    const links = rate.result_ids.length
      ? [...resultLinks(rate), rate.results > 3 ? ` and ${rate.results - 3} more` : ""]
      : [];
    if (rate.merged) links.push(links.length ? "; " : "", notSeparated(rate));
    if (rate.disputed.length) links.push(links.length ? "; " : "", "not direct evidence: ", ...disputedRates(option).map(linked));
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, el("a", { href: `accelerators/${rate.accelerator}.html` }, hardware(option)),
        el("small", {}, question.method === "any" ? `${METHODS[rate.method]}, ${place(option)}` : place(option))),
      cell("Cost", usd(option.usd), `${usd(option.usd_low)} to ${usd(option.usd_high)}`, "tm-num"),
      cell("Time", estimated(option.seconds), `${estimated(option.seconds_low)} to ${estimated(option.seconds_high)}`, "tm-num"),
      cell("Price", hourly(option), option.offer.effective_on, "tm-num"),
      cell("Memory", rate.memory ?? "–", amounts(rate)),
      cell("Evidence", KINDS_OF_EVIDENCE[rate.evidence], links.length ? links : null),
      cell("Rank", rank, [...new Set([...option.exceeds, ...option.limits])].join(", ") || null)
    );
  };

  const HEADS = ["Hardware", "Cost", "Time", "Price", "Memory", "Evidence", "Rank"];
  const table = (name, options, question, most = SHOWN) => {
    const head = el("tr", {}, ...HEADS.map((text) => el("th", { scope: "col", ...(["Cost", "Time", "Price"].includes(text) ? { class: "tm-num" } : {}) }, text)));
    return el("div", { class: "tm-table-box" },
      el("div", { class: "tm-scroll", tabindex: "0", role: "region", "aria-label": name },
        el("table", { class: "tm-table tm-stacked" }, el("caption", { class: "tm-unseen" }, name), el("thead", {}, head),
          el("tbody", {}, ...options.slice(0, most).map((option) => row(option, question))))));
  };
  const folded = (title, options, question, most = SHOWN) =>
    options.length
      ? [el("details", { class: "tm-more" }, el("summary", {}, `${title}: ${fixed(options.length, 0)}`), table(title, options, question, most))]
      : [];

  const card = (pick, option, question) =>
    el("div", {}, el("dt", {}, PICKS[pick]),
      el("dd", {}, pick === "fastest" ? estimated(option.seconds) : usd(option.usd),
        el("small", {}, `${pick === "fastest" ? usd(option.usd) : estimated(option.seconds)}, ${hardware(option)}, ${option.offer.provider_name}`),
        el("small", {}, question.method === "any" ? `${METHODS[option.rate.method]}, ${KINDS_OF_EVIDENCE[option.rate.evidence]}` : KINDS_OF_EVIDENCE[option.rate.evidence])));

  const show = (question, answer, tuned, names, cards) => {
    const best = answer.ranked[0], parts = [];
    // A reader who chose hardware of his own asks about it first.
    parts.push(...ownHardware(question, answer).map((line) => paragraph(el("strong", {}, line))), el("p", { class: "tm-headline" }, headline(question, answer)));
    if (best) {
      const links = resultLinks(best.rate);
      parts.push(paragraph(evidence(best), links.length ? " Results: " : "", ...links, links.length ? "." : "", ` Memory ${memory(best)} (${configuration(best)}). ${energy(best)}`));
      if (best.rate.disputed.length) parts.push(paragraph(...disputed(best).map(linked)));
      parts.push(el("dl", { class: "tm-headlines", "aria-label": "Best options" }, ...Object.entries(answer.picks).map(([pick, number]) => card(pick, answer.ranked[number], question))));
      const chart = chartOf(answer.ranked);
      if (chart) parts.push(el("figure", { class: "tm-chart tm-time-cost" }, chart, el("figcaption", {}, HINT)));
      parts.push(el("h2", { id: "options" }, "Options"), el("p", { class: "tm-quiet" }, ORDER), table("Options, best first", answer.ranked, question));
      parts.push(...folded("Further options", answer.ranked.slice(SHOWN), question, Infinity));
    }
    parts.push(...folded("Tight memory, or may exceed a limit", answer.may_exceed, question), ...folded("Over a limit", answer.exceeding, question));
    const lines = [...changes(question, answer), withTuned(question, answer, tuned)].filter(Boolean);
    if (lines.length) parts.push(el("h2", {}, "What would change this answer"), el("ul", {}, ...lines.map((line) => el("li", {}, line))));
    const missing = [notFitting(answer), unknownOf(answer), fillGap(answer, workloadFor(cards, question))].filter(Boolean);
    if (missing.length) parts.push(el("h2", {}, "What is not recommended or not known"), el("ul", {}, ...missing.map((line) => el("li", {}, ...withLinks(line, names)))));
    const used = answer.sequence_length === question.sequence_length ? "" : ` Rates are those of rows of ${fixed(answer.sequence_length, 0)} tokens.`;
    parts.push(el("p", { class: "tm-quiet" }, `${startup(question)} ${NOT_INCLUDED}${used}`));
    answerBox.replaceChildren(...parts);
  };

  const complain = ({ message, field: name }) => {
    const wrong = field(name);
    wrong?.setAttribute("aria-invalid", "true");
    if (wrong?.closest("details")) wrong.closest("details").open = true;
    answerBox.replaceChildren(el("p", { class: "tm-headline", role: "alert" }, message));
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

  const fetched = new Map();
  const load = (path) => {
    if (!fetched.has(path))
      fetched.set(path, fetch(path).then((response) => {
        if (!response.ok) throw new Error(`The data ${path} cannot be read (${response.status}); reload the page.`);
        return response.json();
      }));
    return fetched.get(path).catch((error) => {
      fetched.delete(path);
      throw error;
    });
  };

  let turn = 0;
  const update = async () => {
    const mine = (turn += 1);
    for (const marked of form.querySelectorAll("[aria-invalid]")) marked.removeAttribute("aria-invalid");
    try {
      if (unknown) throw new Error(unknown);
      const [index, data] = await Promise.all([load("data/recommend/index.json"), load(`data/recommend/${encodeURIComponent(field("model").value)}.json`)]);
      if (mine !== turn) return;
      data.rates ??= decoded(data);
      const question = questionOf(index);
      const answer = recommend(question, data.rates, index.offers);
      show(question, answer, question.software === "plain" ? recommend({ ...question, software: "tuned" }, data.rates, index.offers) : { ranked: [] }, index.accelerators, index.workloads[field("model").value]);
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
    // A model with a shorter context gets its longest rows.
    const longest = Number(field("model").selectedOptions[0]?.dataset.longest);
    if (target.name === "model" && Number(field("length").value) > longest) field("length").value = longest;
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      remember();
      update();
    }, 150);
  });
  if (location.search) update();
})();
