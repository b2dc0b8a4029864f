// What the pages do beyond being read. They are complete without it.
(() => {
  "use strict";

  // Links into Airflow. The frame may neither navigate the window nor open another one (the UI's sandbox); a link that
  // belongs to the UI's own document may.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-top]");
    if (!link || window.parent === window || event.defaultPrevented || event.button !== 0) return;
    let outer;
    try {
      outer = window.parent.document;
    } catch {
      return;
    }
    event.preventDefault();
    const proxy = outer.createElement("a");
    proxy.href = link.href;
    if (event.metaKey || event.ctrlKey || event.shiftKey) proxy.target = "_blank";
    proxy.rel = "noopener";
    outer.body.append(proxy);
    proxy.click();
    proxy.remove();
  });

  // Outside the frame: the same page inside Airflow's UI.
  for (const link of document.querySelectorAll("a[data-shell]")) {
    link.href = link.dataset.shell + window.location.pathname + window.location.search;
  }

  // Times in the zone that is chosen in Airflow's UI; like there, that of the browser unless one is.
  const zone = (() => {
    try {
      return JSON.parse(window.localStorage.getItem("timezone")) ?? undefined;
    } catch {
      return undefined;
    }
  })();
  // In Swedish, since it writes dates like ISO 8601, and offsets where a zone has no name that everybody knows.
  const localize = (root) => {
    let format;
    try {
      format = new Intl.DateTimeFormat("sv-SE", {
        timeZone: zone,
        year: "numeric",
        month: "2-digit",
        day: "2-digit",
        hour: "2-digit",
        minute: "2-digit",
        second: "2-digit",
        hourCycle: "h23",
        timeZoneName: "short",
      });
    } catch {
      return;
    }
    const told = (time) => {
      const moment = new Date(time.dateTime);
      if (Number.isNaN(moment.getTime())) return null;
      const part = Object.fromEntries(format.formatToParts(moment).map(({ type, value }) => [type, value]));
      const text = `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second}`;
      return { text, zone: part.timeZoneName };
    };
    for (const time of root.querySelectorAll("time[datetime]")) {
      const shown = time.closest(".interval") ? null : told(time);
      if (shown) time.textContent = `${shown.text} ${shown.zone}`;
    }
    // Of an interval between two midnights, the dates say it all. Its zone comes last, unless the clock changes in between.
    for (const interval of root.querySelectorAll(".interval")) {
      const times = [...interval.querySelectorAll("time[datetime]")];
      const ends = times.map(told);
      if (ends.includes(null)) continue;
      const last = ends.at(-1).zone;
      const cut = ends.every(({ text }) => text.endsWith(" 00:00:00")) ? / 00:00:00$/ : /(?<=:\d\d):00$/;
      ends.forEach(({ text, zone: own }, index) => {
        times[index].textContent = text.replace(cut, "") + (own === last ? "" : ` ${own}`);
      });
      interval.querySelector(".zone").textContent = last;
    }
  };
  localize(document);

  // Parts that take more than a look into the log come when they are asked for.
  const load = (part, address = part.dataset.load) => {
    part.setAttribute("aria-busy", "true");
    const hint = document.createElement("p");
    hint.className = "hint pad";
    hint.textContent = part.dataset.reading;
    const form = part.querySelector("form[data-load-form]");
    const before = part.querySelector(".hint");
    if (before) before.replaceWith(hint);
    else part.append(hint);
    fetch(address, { credentials: "same-origin", headers: { Accept: "text/html" } })
      .then((response) => response.text())
      .then((text) => {
        const parsed = new DOMParser().parseFromString(text, "text/html");
        part.replaceChildren(...parsed.body.childNodes);
        if (form && !part.querySelector("form")) part.append(form); // an error is shown: the keys can be changed
        localize(part);
      })
      .catch(() => {
        hint.textContent = "The API server did not answer. Reload the page to try again.";
      })
      .finally(() => part.removeAttribute("aria-busy"));
  };
  document.addEventListener("click", (event) => {
    const part = event.target.closest?.("a[data-load-now]")?.closest("[data-load]");
    if (!part || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    load(part);
  });
  document.addEventListener("submit", (event) => {
    const part = event.target.closest?.("form[data-load-form]")?.closest("[data-load]");
    if (!part) return;
    event.preventDefault();
    load(part, `${event.target.action}?${new URLSearchParams([...new FormData(event.target), ["part", "1"]])}`);
  });

  // A column of the chart and its row in the timeline light up together.
  const mark = (version, on) => {
    for (const element of document.querySelectorAll(`[data-version="${version}"]`)) element.classList.toggle("lit", on);
  };
  for (const type of ["mouseover", "mouseout", "focusin", "focusout"]) {
    document.addEventListener(type, (event) => {
      const element = event.target.closest?.("[data-version]");
      if (element) mark(element.dataset.version, type === "mouseover" || type === "focusin");
    });
  }
})();
