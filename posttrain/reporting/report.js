"use strict";
// Which seed's completions are shown, and whether the figures show single seeds.
const chooser = document.getElementById("seed");
function choose() {
  for (const sample of document.querySelectorAll(".sample")) {
    sample.hidden = chooser.value !== "all" && sample.dataset.seed !== chooser.value;
  }
}
if (chooser) { chooser.addEventListener("change", choose); choose(); }
const lines = document.getElementById("lines");
if (lines) {
  lines.addEventListener("click", () => {
    const hidden = lines.getAttribute("aria-pressed") === "true";
    lines.setAttribute("aria-pressed", String(!hidden));
    lines.textContent = hidden ? "hide single seeds" : "show single seeds";
    for (const line of document.querySelectorAll("svg g[id^='seed-']")) { line.style.display = hidden ? "" : "none"; }
  });
}
