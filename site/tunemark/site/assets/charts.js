// Draws the charts of a page. The colours are variables of the page, so a change of palette needs no new drawing.
import "./vega.bundle.js";

for (const place of document.querySelectorAll("[data-chart]")) {
  const source = document.querySelector(`[data-chart-spec="${place.dataset.chart}"]`);
  place.hidden = false;
  window.vegaEmbed(place, JSON.parse(source.textContent), { actions: false, renderer: "svg", tooltip: { theme: "custom" } })
    .then(() => { place.dataset.drawn = ""; })
    .catch((error) => {
      place.textContent = `This chart could not be drawn: ${error.message}`;
      console.error(error);
    });
}
