// Draws the charts of a page when they come near the window. The colours are variables of the page, so a change of palette needs no
// new drawing. Vega is loaded before the first drawing.
const places = [...document.querySelectorAll("[data-chart]")];
for (const place of places) place.hidden = false;

let vega;
const draw = async (place) => {
  try {
    await (vega ??= import("./vega.bundle.js"));
    const source = document.querySelector(`[data-chart-spec="${place.dataset.chart}"]`);
    await window.vegaEmbed(place, JSON.parse(source.textContent), { actions: false, renderer: "svg", tooltip: { theme: "custom" } });
    place.dataset.drawn = "";
  } catch (error) {
    place.textContent = `This chart could not be drawn: ${error.message}`;
    console.error(error);
  }
};

const watcher = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    watcher.unobserve(target);
    draw(target);
  }
}, { rootMargin: "100px" });
for (const place of places) watcher.observe(place);
addEventListener("beforeprint", () => places.filter((place) => !("drawn" in place.dataset)).forEach(draw));
