// What the scripts of several pages share: number formats of formats.js, the reading of columns, and making elements.
globalThis.tunemarkCommon = (() => {
  const { cmp, format, round } = globalThis.tunemarkPython;
  const fixed = (value, digits) => format(value, `,.${digits}f`);

  // A column is a list, or a list of codes into a list of values.
  const decoded = ({ columns, length }) => {
    const names = Object.keys(columns);
    const lists = names.map((name) => {
      const column = columns[name];
      return Array.isArray(column) ? column : column.codes.map((code) => column.values[code]);
    });
    return Array.from({ length }, (_, row) => Object.fromEntries(names.map((name, index) => [name, lists[index][row]])));
  };

  // A function that reads a file of data once, and again after an error.
  const reader = (address, prepared) => {
    let reading = null;
    return () => {
      reading ??= fetch(address).then(async (response) => {
        if (!response.ok) throw new Error(`The file ${address} cannot be read (${response.status}); reload the page.`);
        return prepared(await response.json());
      }).catch((error) => {
        reading = null;
        throw error;
      });
      return reading;
    };
  };

  // An element with attributes, `text` in it and children, so that nothing in the data is markup.
  const el = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "text") made.textContent = value;
      else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== ""));
    return made;
  };

  const small = (text, name = null) => (text ? el("small", { class: name }, text) : null);
  return { ...globalThis.tunemark.formats, ...globalThis.tunemarkAddress, byParts: cmp, decoded, el, fixed, reader, small, whole: round };
})();
