// The report of a sweep: pointing at one run, in any chart or in the table, picks it out in all of them.
const startSweep = (figures) => {
  const follow = (number) => {
    for (const part of document.querySelectorAll("[data-run]")) {
      part.classList.toggle("chosen", part.dataset.run === number);
    }
    for (const figure of figures) {
      const part = [...figure.querySelectorAll(".run")].find((run) => run.dataset.run === number);
      const readout = figure.querySelector(".readout");
      figure.classList.toggle("following", part !== undefined);
      readout.textContent = part ? part.dataset.label : readout.dataset.empty;
    }
  };
  for (const part of document.querySelectorAll("[data-run]")) {
    part.addEventListener("pointerenter", () => follow(part.dataset.run));
    part.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") follow(null); });
    part.addEventListener("focusin", () => follow(part.dataset.run));
    part.addEventListener("focusout", () => follow(null));
  }
};
const figuresOfRuns = [...document.querySelectorAll(".runs")];
if (figuresOfRuns.length) startSweep(figuresOfRuns);
