"use strict";
// Light or dark: until the button is pressed the system decides.
{
  const root = document.documentElement, button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); });
  system.addEventListener("change", name);
  name();
}

// The address says what is shown, at once unless keys come fast: browsers refuse to change it many times a second.
let addressTimer = 0, addressed = -Infinity;
function nameAddress(text) {
  const write = () => { history.replaceState(null, "", text); addressed = performance.now(); };
  clearTimeout(addressTimer);
  const left = addressed + 300 - performance.now();
  if (left <= 0) write();
  else addressTimer = setTimeout(write, left);
}
