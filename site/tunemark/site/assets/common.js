// What the scripts of several pages share: number formats, the reading of columns, and making elements. No dependencies.
globalThis.tunemarkCommon = (() => {
  // Formats: as tunemark.schema.formats, ties to even as in Python ----------------------------------
  const GIB = 2 ** 30;

  // A value between two roundings has one digit more in its shortest form, a 5. Only then is the exact expansion worth its time.
  const mayTie = (value, digits) => {
    const shortest = Math.abs(value).toExponential().split("e")[0];
    return shortest.length === digits + 2 && shortest.endsWith("5");
  };
  // Cuts the exact decimal expansion of a number after some fraction digits of its exponential form.
  const rounded = (value, digits) => {
    const short = Number(value.toExponential(digits - 1));
    if (!mayTie(value, digits)) return short;
    const [mantissa, exponent] = Math.abs(value).toExponential(60).split("e");
    const all = mantissa.replace(".", "");
    if (!/^50*$/.test(all.slice(digits)) || Number(all[digits - 1]) % 2) return short;
    return Math.sign(value) * Number(`${all[0]}.${all.slice(1, digits) || 0}e${exponent}`);
  };
  const exponentOf = (value) => Number(Math.abs(value).toExponential().split("e")[1]);
  // One formatter for each number of digits: toLocaleString would make a new one at each call.
  const formatters = {};
  const formatted = (value, kind, digits) => {
    formatters[kind + digits] ??= new Intl.NumberFormat("en-US", { [`minimum${kind}Digits`]: digits, [`maximum${kind}Digits`]: digits });
    return formatters[kind + digits].format(value);
  };
  const fixed = (value, decimals) => formatted(value, "Fraction", decimals);
  const significant = (value, digits = 3) => {
    if (value === 0) return "0";
    if (!mayTie(value, digits)) return formatted(value, "Significant", digits);
    const near = rounded(value, digits);
    return fixed(near, Math.max(0, digits - 1 - exponentOf(near)));
  };
  const whole = (value) => {
    const floor = Math.floor(value);
    return value - floor === 0.5 ? floor + (floor % 2) : Math.round(value);
  };
  const duration = (value) => {
    if (value < 1) return `${significant(value * 1000)} ms`;
    if (value < 120) return `${significant(value)} s`;
    const all = whole(value);
    const two = (number) => String(number).padStart(2, "0");
    if (all < 3600) return `${Math.floor(all / 60)} min ${two(all % 60)} s`;
    const minutes = whole(value / 60);
    return `${fixed(Math.floor(minutes / 60), 0)} h ${two(minutes % 60)} min`;
  };
  // For estimates: without seconds from 10 min, without minutes from 10 h, in days from 72 h.
  const estimated = (value) => {
    const minutes = whole(value / 60);
    if (minutes >= 4320) return `${significant(value / 86400, 2)} days`;
    if (minutes >= 600) return `${fixed(whole(value / 3600), 0)} h`;
    if (minutes >= 60) return duration(minutes * 60);
    return minutes >= 10 || (value >= 120 && whole(value) % 60 === 0) ? `${minutes} min` : duration(value);
  };
  const usd = (value) => {
    if (Math.abs(value) < 1) return `$${significant(value)}`;
    return `$${fixed(rounded(value, exponentOf(value) + 3), 2)}`;
  };
  const gib = (bytes) => `${significant(bytes / GIB)} GiB`;
  const plain = (value) => (Number.isInteger(value) ? fixed(value, 0) : significant(value, 4));

  // Data and elements -------------------------------------------------------------------------------

  // A column is a list, or a list of codes into a list of values.
  const decoded = ({ columns, length }) => {
    const names = Object.keys(columns);
    const lists = names.map((name) => {
      const column = columns[name];
      return Array.isArray(column) ? column : column.codes.map((code) => column.values[code]);
    });
    return Array.from({ length }, (_, row) => Object.fromEntries(names.map((name, index) => [name, lists[index][row]])));
  };

  // The order of two keys, part by part, as Python orders tuples.
  const byParts = (a, b) => {
    for (let index = 0; index < a.length; index += 1) if (a[index] !== b[index]) return a[index] < b[index] ? -1 : 1;
    return 0;
  };

  const el = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
    made.append(...children.filter((child) => child !== null && child !== ""));
    return made;
  };

  return { byParts, decoded, duration, el, estimated, fixed, gib, plain, significant, usd, whole };
})();
