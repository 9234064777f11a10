"use strict";

// The cards: narrowed down by outcome and by words, folded and unfolded together.
const toolbar = document.querySelector(".toolbar");
if (toolbar) {
  const cards = [...document.querySelectorAll(".card")];
  const filters = [...toolbar.querySelectorAll("[data-outcome]")];
  const search = toolbar.querySelector("input");
  const unfold = toolbar.querySelector(".unfold");
  const matches = toolbar.querySelector(".matches");
  const textOf = new Map(cards.map((card) => [card, card.textContent.toLowerCase()]));

  const isPressed = (button) => button.getAttribute("aria-pressed") === "true";

  const narrow = () => {
    const outcomes = filters.filter(isPressed).map((button) => button.dataset.outcome);
    const words = search.value.toLowerCase().split(/\s+/);
    for (const card of cards) {
      const isWanted = outcomes.length === 0 || outcomes.includes(card.dataset.outcome);
      card.hidden = !isWanted || !words.every((word) => textOf.get(card).includes(word));
    }
    for (const list of document.querySelectorAll(".questions")) {
      list.hidden = !list.querySelector(".card:not([hidden])");
    }
    const numShown = cards.filter((card) => !card.hidden).length;
    matches.textContent = numShown === cards.length ? "" : `${numShown} of ${cards.length} shown`;
  };

  for (const button of filters) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(!isPressed(button)));
      narrow();
    });
  }
  search.addEventListener("input", narrow);
  unfold.addEventListener("click", () => {
    const open = !isPressed(unfold);
    unfold.setAttribute("aria-pressed", String(open));
    for (const card of cards) card.open = open;
  });
  toolbar.hidden = false;
}

// The charts: a cursor that follows the pointer or the arrow keys, with the values at its step.
for (const plot of document.querySelectorAll(".plot")) {
  const series = JSON.parse(plot.dataset.series);
  const lastStep = Number(plot.dataset.lastStep);
  const steps = [...new Set(series.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => a - b);
  const readout = plot.parentElement.querySelector(".readout");
  const cursor = document.createElement("div");
  cursor.className = "cursor";
  cursor.hidden = true;
  plot.append(cursor);
  let current = steps.length - 1;

  const show = (index) => {
    current = Math.max(0, Math.min(steps.length - 1, index));
    const step = steps[current];
    const values = series.flatMap((line) =>
      line.points.filter((point) => point[0] === step).map((point) => `${line.label} ${point[1]}`)
    );
    const text = [`step ${step.toLocaleString("en")}`, ...values].join(", ");
    cursor.style.left = `${(100 * step) / lastStep}%`;
    cursor.hidden = false;
    readout.textContent = text;
    plot.setAttribute("aria-valuenow", step);
    plot.setAttribute("aria-valuetext", text);
  };

  const nearest = (event) => {
    const box = plot.getBoundingClientRect();
    const wanted = (lastStep * (event.clientX - box.left)) / box.width;
    const distance = (step) => Math.abs(step - wanted);
    return steps.reduce((best, step, index) => (distance(step) < distance(steps[best]) ? index : best), 0);
  };

  plot.setAttribute("role", "slider");
  plot.setAttribute("aria-valuemin", 0);
  plot.setAttribute("aria-valuemax", lastStep);
  plot.tabIndex = 0;
  plot.addEventListener("pointermove", (event) => show(nearest(event)));
  plot.addEventListener("pointerleave", () => { cursor.hidden = true; readout.textContent = "steps"; });
  plot.addEventListener("focus", () => show(current));
  plot.addEventListener("blur", () => { cursor.hidden = true; readout.textContent = "steps"; });
  plot.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: steps.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key]);
  });
}
