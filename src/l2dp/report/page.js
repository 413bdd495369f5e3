"use strict";
// Adds to a page that is whole without it: sorting, legends that toggle, values under the pointer, a theme button.
// Every text it shows was written by Python; names go through textContent and are never read as HTML.
(() => {
  const MOST_TOLD = 12;

  // Tables: a click on a head sorts by that column, another turns it round.
  function sort(button) {
    const head = button.closest("th");
    const column = [...head.parentNode.children].indexOf(head);
    const upwards = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentNode.children) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", upwards ? "ascending" : "descending");
    const body = head.closest("table").tBodies[0];
    const keyed = [...body.rows].map((row) => {
      const cell = row.cells[column];
      const key = cell.dataset.k;
      return { row, number: key === undefined ? NaN : Number(key), text: cell.textContent };
    });
    const numeric = keyed.some(({ number }) => !Number.isNaN(number));
    const compare = new Intl.Collator(undefined, { numeric: true }).compare;
    keyed.sort((a, b) => {
      if (!numeric) return upwards ? compare(a.text, b.text) : compare(b.text, a.text);
      // What has no number stays at the end, whichever way.
      if (Number.isNaN(a.number) || Number.isNaN(b.number)) return Number.isNaN(a.number) - Number.isNaN(b.number);
      return (a.number < b.number ? -1 : a.number > b.number ? 1 : 0) * (upwards ? 1 : -1);
    });
    body.append(...keyed.map(({ row }) => row));
  }

  // Legends.
  function show(button, shown) {
    button.setAttribute("aria-pressed", String(shown));
    const series = button.closest("figure").querySelector(`.plot g[data-i="${button.dataset.i}"]`);
    series.classList.toggle("off", !shown);
  }

  // Values: the points nearest to a place on the x axis, of every line that is shown.
  function points(plot) {
    const found = [];
    const names = plot.parentNode.querySelectorAll(".legend span");
    for (const series of plot.querySelectorAll("g[data-i]:not(.off)")) {
      const where = series.dataset.x.split("|");
      const values = series.dataset.v.split("|");
      const line = series.querySelector(".line").getAttribute("d");
      let place = 0;
      for (const [, x, y] of line.matchAll(/[ML]([\d.]+) ([\d.]+)/g)) {
        const name = names[series.dataset.i].textContent;
        found.push({ x: Number(x), y: Number(y), where: where[place], value: values[place], name });
        place += 1;
      }
    }
    return found;
  }

  function tell(plot, found, at) {
    const hint = plot.querySelector(".hint");
    if (!found.length) return silence(plot);
    const nearest = found.reduce((a, b) => (Math.abs(b.x - at) < Math.abs(a.x - at) ? b : a));
    const here = found.filter((point) => Math.abs(point.x - nearest.x) < 0.3).sort((a, b) => a.y - b.y);
    const head = document.createElement("b");
    head.textContent = nearest.where;
    const told = here.slice(0, MOST_TOLD).map(({ name, value }) => {
      const row = document.createElement("span");
      const [left, right] = [document.createElement("i"), document.createElement("em")];
      left.textContent = name;
      right.textContent = value;
      row.append(left, " ", right);
      return row;
    });
    if (here.length > MOST_TOLD) {
      const more = document.createElement("span");
      more.textContent = `and ${here.length - MOST_TOLD} more`;
      told.push(more);
    }
    hint.replaceChildren(head, ...told);
    hint.classList.toggle("values", here.some(({ value }) => value.length > 24));
    hint.hidden = false;
    plot.dataset.at = nearest.x;
    const view = plot.querySelector("svg").viewBox.baseVal;
    plot.querySelector(".cursor").setAttribute("d", `M${nearest.x} 16V${view.height - 66}`);
    // Beside the cursor, on the side where there is room.
    const width = plot.clientWidth;
    const left = (nearest.x / view.width) * width;
    const room = hint.offsetWidth;
    hint.style.left = `${Math.max(0, left + 14 + room < width ? left + 14 : left - 14 - room)}px`;
  }

  function silence(plot) {
    plot.querySelector(".hint").hidden = true;
    plot.querySelector(".cursor").setAttribute("d", "");
    delete plot.dataset.at;
  }

  function step(plot, key) {
    const found = points(plot);
    const places = [...new Set(found.map(({ x }) => x))].sort((a, b) => a - b);
    if (!places.length) return;
    const now = plot.dataset.at === undefined ? -1 : places.indexOf(Number(plot.dataset.at));
    const next = { ArrowRight: now + 1, ArrowLeft: now < 0 ? places.length - 1 : now - 1, Home: 0, End: places.length - 1 };
    tell(plot, found, places[Math.min(places.length - 1, Math.max(0, next[key]))]);
  }

  // Matrices beyond the first few are written out when they are opened: hundreds of them would make a page slow.
  function unfold(box) {
    const inner = box.querySelector("[data-cells]");
    if (!inner || !box.open) return;
    const rows = inner.dataset.rows.split(" ");
    const columns = inner.dataset.columns.split(" ");
    const table = document.createElement("table");
    table.className = "heat";
    table.createCaption().textContent = box.querySelector("summary").textContent;
    const cell = (row, tag, text, name) => {
      const made = document.createElement(tag);
      made.textContent = text;
      if (tag === "th") made.scope = name;
      else made.className = name;
      row.append(made);
    };
    const head = table.createTHead().insertRow();
    cell(head, "th", "after \\ on", "col");
    for (const column of columns) cell(head, "th", column, "col");
    const body = table.createTBody();
    inner.dataset.cells.split("|").forEach((line, place) => {
      const row = body.insertRow();
      cell(row, "th", rows[place], "row");
      line.split(" ").forEach((text, at) => {
        const shade = Number.isNaN(Number(text)) ? "" : `c${Math.max(0, Math.min(20, Math.round(Number(text) / 5)))} `;
        const [after, on] = [Number(rows[place]), Number(columns[at])];
        cell(row, "td", text, `${shade}${after === on ? "d" : on > after ? "u" : ""}`.trim());
      });
    });
    inner.removeAttribute("data-cells");
    inner.append(table);
  }

  async function copy(button) {
    const text = button.parentNode.querySelector("pre");
    getSelection().selectAllChildren(text);
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "copied";
    } catch {
      button.textContent = "selected: copy it now";
    }
  }

  function theme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  }

  document.addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (!button) return;
    if (button.matches("thead button")) sort(button);
    else if (button.dataset.i) show(button, button.getAttribute("aria-pressed") !== "true");
    else if (button.dataset.all) {
      for (const one of button.closest("figure").querySelectorAll(".legend button")) show(one, button.dataset.all === "true");
    } else if (button.matches(".copy")) copy(button);
    else if (button.matches(".theme")) theme();
  });

  document.addEventListener("pointermove", ({ target, clientX }) => {
    const plot = target.closest(".plot");
    for (const other of document.querySelectorAll(".plot[data-at]")) {
      if (other !== plot && other !== document.activeElement) silence(other);
    }
    if (!plot) return;
    const svg = plot.querySelector("svg");
    const box = svg.getBoundingClientRect();
    tell(plot, points(plot), ((clientX - box.left) / box.width) * svg.viewBox.baseVal.width);
  });

  document.addEventListener("keydown", (event) => {
    const plot = event.target.closest(".plot");
    if (!plot) return;
    if (event.key === "Escape") silence(plot);
    if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    step(plot, event.key);
  });
  document.addEventListener("focusout", ({ target }) => target.matches(".plot") && silence(target));
  document.addEventListener("toggle", ({ target }) => target.matches("details") && unfold(target), true);
})();
