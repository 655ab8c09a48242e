// Draws the plots, hides designs, and sorts tables. Everything else on the page is plain HTML.
(() => {
  "use strict";

  const tip = document.body.appendChild(document.createElement("div"));
  tip.id = "tip";
  tip.hidden = true;

  function explain(_, event, item, value) {
    tip.hidden = !value || typeof value !== "object";
    if (tip.hidden) return;
    tip.replaceChildren(...Object.entries(value).map(([key, said]) => {
      const row = document.createElement("div");
      for (const text of [key, said]) {
        row.appendChild(document.createElement("span")).textContent = text;
      }
      return row;
    }));
    const { clientX, clientY } = event.touches ? event.touches[0] : event;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(clientX + 12, innerWidth - box.width - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(clientY + 12, innerHeight - box.height - 4))}px`;
  }

  const plots = JSON.parse(document.getElementById("plots").textContent);
  const views = Object.entries(plots).map(async ([name, spec]) => {
    const box = document.querySelector(`[data-plot="${name}"]`);
    const options = { mode: "vega", renderer: "svg", actions: false, tooltip: explain };
    return (await vegaEmbed(box, spec, options)).view;
  });
  Promise.all(views).then((drawn) => {
    const boxes = [...document.querySelectorAll(".choices input")];
    const hide = () => {
      const hidden = boxes.filter((box) => !box.checked).map((box) => box.value);
      for (const view of drawn) view.signal("hidden", hidden).runAsync();
      for (const row of document.querySelectorAll("tr[data-design]")) {
        row.hidden = hidden.includes(row.dataset.design);
      }
    };
    for (const box of boxes) box.addEventListener("change", hide);
    // A browser keeps what was ticked when a page is loaded again.
    if (boxes.some((box) => !box.checked)) hide();
    const choice = document.querySelector(".choices .case");
    if (choice) choice.addEventListener("change", () => {
      for (const view of drawn) view.signal("place", choice.value).runAsync();
    });
    // Paper has another width than the window.
    for (const event of ["beforeprint", "afterprint"]) {
      addEventListener(event, () => { for (const view of drawn) view.resize().run(); });
    }
    document.body.dataset.drawn = drawn.length;
  });

  const key = (cell) => cell.dataset.value === undefined ? cell.textContent : +cell.dataset.value;

  for (const head of document.querySelectorAll("th[aria-sort]")) {
    head.firstElementChild.addEventListener("click", () => {
      const table = head.closest("table");
      const place = head.cellIndex;
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.querySelectorAll("th[aria-sort]")) {
        other.setAttribute("aria-sort", "none");
      }
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const [x, y] = [a, b].map((row) => key(row.cells[place]));
        const numbers = typeof x === "number" && typeof y === "number";
        // What has no figure stays last in either direction.
        if (!numbers && typeof x !== typeof y) return typeof x === "number" ? -1 : 1;
        const order = numbers ? x - y : x.localeCompare(y);
        return down ? -order : order;
      });
      table.tBodies[0].append(...rows);
    });
  }
})();
