// The theme loads the index of the search with every page. This script, in the head of each page, holds that request back until the
// reader goes to the search.
(() => {
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
})();
