// The line charts: a cursor that follows the pointer or the arrow keys and shows the values there.
for (const plot of document.querySelectorAll(".plot")) {
  const series = JSON.parse(plot.dataset.series);
  const name = plot.dataset.xName;
  const first = Number(plot.dataset.first);
  const last = Number(plot.dataset.last);
  const places = [...new Set(series.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => a - b);
  const readout = plot.parentElement.querySelector(".readout");
  const cursor = document.createElement("div");
  cursor.className = "cursor";
  cursor.hidden = true;
  plot.append(cursor);
  let current = places.length - 1;

  const show = (index) => {
    current = Math.max(0, Math.min(places.length - 1, index));
    const place = places[current];
    const values = series.flatMap((line) =>
      line.points.filter((point) => point[0] === place).map((point) => `${line.label} ${point[1]}`)
    );
    const text = [`${name} ${place.toLocaleString("en")}`, ...values].join(", ");
    cursor.style.left = `${(100 * (place - first)) / (last - first)}%`;
    cursor.hidden = false;
    readout.textContent = text;
    plot.setAttribute("aria-valuenow", place);
    plot.setAttribute("aria-valuetext", text);
  };

  const hide = () => { cursor.hidden = true; readout.textContent = name; };

  const nearest = (event) => {
    const box = plot.getBoundingClientRect();
    const wanted = first + ((last - first) * (event.clientX - box.left)) / box.width;
    const distance = (place) => Math.abs(place - wanted);
    return places.reduce((best, place, index) => (distance(place) < distance(places[best]) ? index : best), 0);
  };

  plot.setAttribute("role", "slider");
  plot.setAttribute("aria-valuemin", first);
  plot.setAttribute("aria-valuemax", last);
  plot.setAttribute("aria-valuenow", places[current]);
  plot.tabIndex = 0;
  plot.addEventListener("pointermove", (event) => show(nearest(event)));
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("focus", () => show(current));
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: places.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key]);
  });
}
