"use strict";

// The colours: those of the system, unless the reader chose others. A page opened from a file may have no storage.
const theme = {
  key: "portico-report-theme",
  read() {
    try { return localStorage.getItem(theme.key) || "auto"; } catch { return "auto"; }
  },
  keep(value) {
    try { localStorage.setItem(theme.key, value); } catch { /* The choice holds for this visit. */ }
  },
  apply(value) {
    if (value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = value;
  },
};
theme.apply(theme.read());

document.addEventListener("DOMContentLoaded", () => {
  const choice = document.querySelector(".theme");
  for (const input of choice.querySelectorAll("input")) {
    input.checked = input.value === theme.read();
    input.addEventListener("change", () => { theme.apply(input.value); theme.keep(input.value); });
  }
  choice.hidden = false;
});
