// The theme of Airflow's UI, before the first paint. Inside its frame the UI's own root element tells it (it has the class
// "light" or "dark"); alone, what the UI has stored; else what the browser prefers, which the style sheet knows by itself.
(() => {
  "use strict";
  const page = document.documentElement;
  const outer = (() => {
    try {
      return window.parent !== window ? window.parent.document.documentElement : null;
    } catch {
      return null; // a frame of another site
    }
  })();

  const chosen = () => {
    for (const theme of ["dark", "light"]) {
      if (outer?.classList.contains(theme)) return theme;
    }
    try {
      const stored = window.localStorage.getItem("theme");
      return stored === "dark" || stored === "light" ? stored : null;
    } catch {
      return null;
    }
  };

  const apply = () => {
    const theme = chosen();
    if (theme) page.dataset.theme = theme;
    else delete page.dataset.theme;
  };

  apply();
  page.classList.toggle("framed", window.parent !== window);
  if (outer) new MutationObserver(apply).observe(outer, { attributes: true, attributeFilter: ["class"] });
  window.addEventListener("storage", apply);
})();
