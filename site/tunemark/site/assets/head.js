// The script in the head of each page. The theme loads the index of the search with every page: that request is held back until the
// reader goes to the search. Other scripts read and write the address with `tunemarkAddress`.
globalThis.tunemarkAddress = (() => {
  const held = [];
  const { open, send } = XMLHttpRequest.prototype;
  // On the page of results, the words of an address are those of its own search.
  if (/\/results\/(index\.html)?\?(.*&)?q=/.test(location.href)) history.replaceState(null, "", location.href.replace(/([?&])q=/, "$1text="));
  let wanted = /[?&]q=/.test(location.search);
  XMLHttpRequest.prototype.open = function (method, url, ...rest) {
    this.isIndex = String(url).endsWith("/search_index.json");
    return open.call(this, method, url, ...rest);
  };
  XMLHttpRequest.prototype.send = function (body) {
    if (this.isIndex && !wanted) held.push(() => send.call(this, body));
    else send.call(this, body);
  };
  addEventListener("focusin", ({ target }) => {
    if (!target.matches?.("[data-md-component=search-query]")) return;
    wanted = true;
    for (const request of held.splice(0)) request();
  });

  // Show a query in the address. Back leads to the one before, unless the same field is changed again.
  let changed = null;
  const visit = (query, field) => {
    const address = `${location.pathname}${query ? `?${query}` : ""}${location.hash}`;
    if (address !== `${location.pathname}${location.search}${location.hash}`) history[field === changed ? "replaceState" : "pushState"](null, "", address);
    changed = field;
  };
  addEventListener("popstate", () => { changed = null; });

  // Names in the address that a page does not know, as a sentence. Those of the theme's search and of tables (tables.js) are not meant for the page.
  const unknownNames = (isKnown) => {
    const names = [...new Set(new URLSearchParams(location.search).keys())].filter((name) => !/^(q|h|utm_.*|text\d*)$/.test(name) && !isKnown(name));
    return names.length ? `The address has ${names.map((name) => `"${name}"`).join(", ")}, which this page does not know. ` : "";
  };
  return { unknownNames, visit };
})();
