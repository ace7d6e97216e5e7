// What translated Python needs (script.py): equality and order by value, dictionaries and sets, and Python's formats and rounding. No dependencies.
globalThis.tunemarkPython = (() => {
  // Values ------------------------------------------------------------------------------------------
  const isObject = (value) => typeof value === "object" && value !== null;
  // The key of a value in a map: its content, which is written out once for each object.
  const written = new WeakMap();
  const keyOf = (value) => {
    if (!isObject(value)) return value;
    if (Array.isArray(value)) return `\0[${value.map((each) => (isObject(each) ? keyOf(each) : typeof each === "string" ? `${each.length}:${each}` : each)).join()}]`;
    if (!written.has(value)) written.set(value, `\0${JSON.stringify(value)}`);
    return written.get(value);
  };

  // A dictionary whose keys are compared by value, in the order of insertion.
  class Dict {
    constructor(pairs = []) {
      this.map = new Map();
      for (const [key, value] of pairs) this.put(key, value);
    }
    put(key, value) {
      const known = keyOf(key), pair = this.map.get(known);
      if (pair) pair[1] = value;
      else this.map.set(known, [key, value]);
    }
    has(key) { return this.map.has(keyOf(key)); }
    get(key, otherwise = null) {
      const pair = this.map.get(keyOf(key));
      return pair ? pair[1] : otherwise;
    }
    setdefault(key, value) {
      if (!this.has(key)) this.put(key, value);
      return this.get(key);
    }
    keys() { return Array.from(this.map.values(), (pair) => pair[0]); }
    values() { return Array.from(this.map.values(), (pair) => pair[1]); }
    items() { return Array.from(this.map.values(), (pair) => [pair[0], pair[1]]); }
    toJSON() { return this.items(); }
  }
  class PySet extends Dict {
    constructor(values = []) { super(seq(values).map((value) => [value, true])); }
    add(value) { this.put(value, true); }
    toJSON() { return this.keys(); }
  }
  class ValueError extends Error {}
  class TunemarkError extends Error {
    constructor(field, value, fix) { super(fix); Object.assign(this, { field, value }); }
  }

  const seq = (values) => {
    if (Array.isArray(values)) return values;
    return values instanceof Dict ? values.keys() : [...values];
  };
  const object = (value) => (value instanceof Dict ? Object.fromEntries(value.items()) : value);
  const truth = (value) => {
    if (Array.isArray(value)) return value.length > 0;
    return value instanceof Dict ? value.map.size > 0 : Boolean(value);
  };
  const eq = (a, b) => {
    if (a === b) return true;
    if (!isObject(a) || !isObject(b)) return a == null && b == null;
    if (a instanceof Dict) return b instanceof Dict && a.map.size === b.map.size && a.items().every(([key, value]) => b.has(key) && eq(value, b.get(key)));
    if (Array.isArray(a)) return Array.isArray(b) && a.length === b.length && a.every((value, index) => eq(value, b[index]));
    const names = Object.keys(a);
    return names.length === Object.keys(b).length && names.every((name) => eq(a[name], b[name]));
  };
  const cmp = (a, b) => {
    if (!Array.isArray(a)) return a < b ? -1 : a > b ? 1 : a === b ? 0 : NaN;
    for (let index = 0; index < Math.min(a.length, b.length); index += 1) {
      const order = cmp(a[index], b[index]);
      if (order !== 0) return order;
    }
    return a.length - b.length;
  };
  const has = (values, value) => {
    if (typeof values === "string") return values.includes(value);
    if (values instanceof Dict) return values.has(value);
    return isObject(value) || value == null ? seq(values).some((each) => eq(each, value)) : seq(values).includes(value);
  };
  const at = (values, index) => {
    if (values instanceof Dict) return values.get(index);
    return index < 0 ? values.at(index) : values[index];
  };
  const put = (values, index, value) => {
    if (values instanceof Dict) values.put(index, value);
    else values[index < 0 ? values.length + index : index] = value;
  };
  const slice = (values, low, high, step) => {
    const part = values.slice(low ?? 0, high ?? undefined);
    return step === null ? part : part.filter((_, index) => index % step === 0);
  };
  const merged = (a, b) => (a instanceof PySet ? new PySet([...a.keys(), ...b.keys()]) : new Dict([...a.items(), ...b.items()]));
  const common = (a, b) => new PySet(a.keys().filter((key) => b.has(key)));
  const add = (a, b) => (Array.isArray(a) ? [...a, ...b] : a + b);
  const value = (a) => (isObject(a) ? a.value : a);
  const mod = (a, b) => ((a % b) + b) % b;
  const make = (type, given, named) => {
    const values = type.fields.map((name, index) => (index < given.length ? given[index] : named[name]));
    return new type(...values);
  };
  const replace = (value, changed) => Object.assign(value.copy(), changed);
  // The results of a function of one argument: a name, or an object as long as it lives.
  const kept = (made) => {
    const objects = new WeakMap(), names = new Map();
    return (argument) => {
      const known = isObject(argument) ? objects : names;
      if (!known.has(argument)) known.set(argument, made(argument));
      return known.get(argument);
    };
  };
  const ids = new WeakMap();
  const id = (value) => {
    if (!ids.has(value)) ids.set(value, (ids.count = (ids.count ?? 0) + 1));
    return ids.get(value);
  };

  // Rounding and formats: of the exact value, ties to even ---------------------------------------------
  const MOST_DIGITS = 100;
  const fixed = (value, digits) => {
    const short = value.toFixed(digits), scaled = Math.abs(value) * 10 ** digits;
    if (scaled < 1e9 && Math.abs(scaled - Math.floor(scaled) - 0.5) > 1e-6) return short; // far from a tie
    const exact = value.toFixed(Math.min(MOST_DIGITS, digits + 30));
    const rest = exact.slice(exact.indexOf(".") + 1 + digits);
    if (!/^50*$/.test(rest)) return short;
    const cut = exact.slice(0, exact.length - rest.length).replace(/\.$/, "");
    return Number(cut.at(-1)) % 2 ? short : cut; // of two neighbours JavaScript takes the larger
  };
  const round = (value, digits = 0) => {
    if (digits === 0) {
      const near = Math.round(value);
      return near - value === 0.5 && near % 2 ? near - 1 : near;
    }
    if (digits >= 0) return Number(fixed(value, digits));
    const size = 10 ** -digits, below = Math.floor(value / size), rest = value - below * size;
    return (below + (rest > size / 2 || (rest === size / 2 && below % 2) ? 1 : 0)) * size;
  };
  const format = (value, spec) => {
    const [, zero, width, comma, digits, kind] = /^(0?)(\d*)(,?)(?:\.(\d+))?([dfg%]?)$/.exec(spec);
    if (spec.endsWith("%")) return `${fixed(100 * value, Number(digits))}%`;
    if (kind === "g") return String(Number(value.toPrecision(digits ?? 6)));
    let text = kind === "f" ? fixed(value, Number(digits ?? 6)) : String(value);
    if (comma) text = text.replace(/^-?\d+/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ","));
    return width ? text.padStart(Number(width), zero || " ") : text;
  };
  const str = (value) => (value == null ? "None" : String(value));

  // Functions and methods --------------------------------------------------------------------------------
  const MISSING = Symbol("missing");
  const best = (sign) => (...given) => {
    const options = isObject(given.at(-1)) && given.at(-1).constructor === Object ? given.pop() : {};
    const values = given.length === 1 ? seq(given[0]) : given, key = options.key ?? ((value) => value);
    if (!values.length && "default" in options) return options.default;
    return values.reduce((kept, value) => (sign * cmp(key(value), key(kept)) > 0 ? value : kept));
  };
  const sorted = (values, { key = (value) => value, reverse = false } = {}) => {
    const keyed = seq(values).map((value) => [key(value), value]);
    return keyed.sort(([a], [b]) => (reverse ? cmp(b, a) : cmp(a, b))).map(([, value]) => value);
  };
  const zip = (...lists) => {
    if (lists.at(-1).constructor === Object) lists.pop();
    const all = lists.map(seq);
    if (all.length !== 2) return all[0].map((_, index) => all.map((list) => list[index]));
    const [one, other] = all;
    return one.map((value, index) => [value, other[index]]);
  };
  const functions = {
    abs: Math.abs, id, len: (values) => values.length ?? values.map.size, round, sorted, str, zip, min: best(-1), max: best(1),
    all: (values) => seq(values).every(truth), any: (values) => seq(values).some(truth),
    sum: (values) => seq(values).reduce((total, value) => total + Number(value), 0),
    dict: (pairs = []) => (pairs instanceof Dict ? new Dict(pairs.items()) : new Dict(seq(pairs))),
    set: (values = []) => new PySet(values), frozenset: (values = []) => new PySet(values), bool: truth, int: Math.trunc, list: (values = []) => [...seq(values)], tuple: (values = []) => [...seq(values)],
    range: (...ends) => Array.from({ length: Math.max(0, ends.at(-1) - (ends[1] === undefined ? 0 : ends[0])) }, (_, index) => index + (ends[1] === undefined ? 0 : ends[0])),
    enumerate: (values, { start = 0 } = {}) => seq(values).map((value, index) => [index + start, value]),
    map: (change, values) => seq(values).map((value) => change(value)),
    next: (values, otherwise = MISSING) => {
      const all = seq(values);
      if (all.length) return all[0];
      if (otherwise === MISSING) throw new ValueError("nothing follows");
      return otherwise;
    },
    iter: seq, product: (...lists) => lists.map(seq).reduce((rows, list) => rows.flatMap((row) => list.map((value) => [...row, value])), [[]]),
    float: Number, getattr: (value, name) => value[name], isinstance: (value, type) => (KINDS.get(type) ?? ((any) => any instanceof type))(value),
    did_you_mean: (_, known) => `known: ${seq(known).join(", ")}`,
    escape: (text) => text.replace(/[&<>"']/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" })[sign]),
    log: Math.log,
    math: {
      ...Object.fromEntries(["ceil", "exp", "floor", "hypot", "log", "log10", "log2", "sqrt"].map((name) => [name, Math[name]])),
      inf: Infinity, isclose: (a, b) => Math.abs(a - b) <= 1e-9 * Math.max(Math.abs(a), Math.abs(b)),
    },
    re: {
      fullmatch: (pattern, text) => new RegExp(`^(?:${pattern})$`).exec(text),
      escape: (text) => text.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&"), split: (pattern, text) => text.split(new RegExp(pattern)),
      finditer: (pattern, text) => [...text.matchAll(new RegExp(pattern, "g"))],
    },
  };
  const { bool, int, dict, list } = functions, isBoolean = (value) => typeof value === "boolean", isDict = (value) => value instanceof Dict;
  const KINDS = new Map([[bool, isBoolean], [int, Number.isInteger], [dict, isDict], [list, Array.isArray]]);
  functions.dict.fromkeys = (keys, value = null) => new Dict(seq(keys).map((key) => [key, value]));
  const METHODS = {
    bit_length: (value) => (value ? Math.floor(Math.log2(value)) + 1 : 0),
    append: (list, value) => { list.push(value); },
    count: (list, value) => list.filter((each) => eq(each, value)).length,
    capitalize: (text) => text.slice(0, 1).toUpperCase() + text.slice(1).toLowerCase(),
    format: (text, value) => text.replace("{}", () => value),
    index: (list, value) => list.findIndex((each) => eq(each, value)),
    is_integer: Number.isInteger,
    join: (text, values) => seq(values).join(text),
    lower: (text) => text.toLowerCase(),
    partition: (text, sign) => {
      const place = text.indexOf(sign);
      return place < 0 ? [text, "", ""] : [text.slice(0, place), sign, text.slice(place + sign.length)];
    },
    removeprefix: (text, start) => (text.startsWith(start) ? text.slice(start.length) : text),
    replace: (text, old, made) => text.replaceAll(old, () => made),
    split: (text, sign) => (sign === undefined ? text.trim().split(/\s+/) : text.split(sign)),
    startswith: (text, start) => text.startsWith(start),
    strip: (text) => text.trim(),
  };
  const and = (value, ...others) => others.reduce((kept, other) => (truth(kept) ? other() : kept), value);
  const or = (value, ...others) => others.reduce((kept, other) => (truth(kept) ? kept : other()), value);
  const floordiv = (a, b) => Math.floor(a / b);

  const names = [METHODS, Dict.prototype, PySet.prototype, functions.dict].flatMap(Object.getOwnPropertyNames);

  return { ...functions, names, TunemarkError, ValueError, add, and, at, cmp, common, eq, floordiv, format, has, kept, make, merged, methods: METHODS, mod, object, or, put, replace, seq, slice, truth, value };
})();
