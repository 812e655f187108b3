"use strict";
// Makes the page's pictures and tables answer: nothing here is needed to read or print them.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (tag, parent, kind = "", text = "") => {
    const vector = parent instanceof SVGElement;
    const made = vector
      ? document.createElementNS("http://www.w3.org/2000/svg", tag)
      : document.createElement(tag);
    if (kind) made.setAttribute("class", kind);
    if (text) made.textContent = text;
    return parent.appendChild(made);
  };
  const hidden = new Set(); // numbers of the methods that the filter hides

  // --- light and dark -----------------------------------------------------------------------------

  function theme() {
    const button = document.getElementById("theme");
    const system = matchMedia("(prefers-color-scheme: dark)");
    const chosen = () => document.documentElement.dataset.theme;
    const dark = () => (chosen() ? chosen() === "dark" : system.matches);
    const show = () => {
      button.setAttribute("aria-pressed", dark());
      button.textContent = dark() ? "Light" : "Dark";
      button.setAttribute("aria-label", `${button.textContent} colours`);
    };
    button.addEventListener("click", () => {
      document.documentElement.dataset.theme = dark() ? "light" : "dark";
      show();
    });
    system.addEventListener("change", show);
    show();
  }

  // --- the filter by method -----------------------------------------------------------------------

  function filter() {
    const boxes = all("#filter input");
    const apply = () => {
      hidden.clear();
      boxes.filter((box) => !box.checked).forEach((box) => hidden.add(box.value));
      for (const part of all("[data-method]"))
        part.toggleAttribute("hidden", hidden.has(part.dataset.method));
    };
    boxes.forEach((box) => box.addEventListener("change", apply));
    if (boxes.length < 4) return;
    const everything = make("button", document.getElementById("filter"), "script", "All or none");
    everything.type = "button";
    everything.addEventListener("click", () => {
      const on = boxes.some((box) => !box.checked);
      boxes.forEach((box) => (box.checked = on));
      apply();
    });
  }

  // --- tables that sort ---------------------------------------------------------------------------

  function compare(a, b) {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  }

  function sort(table, head) {
    const heads = all("thead th", table);
    const column = heads.indexOf(head);
    const value = (row) => row.cells[column].dataset.value;
    const rows = all("tbody tr", table);
    const first = column ? "descending" : "ascending"; // numbers: the largest first
    const other = column ? "ascending" : "descending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    heads.forEach((each) => each.setAttribute("aria-sort", each === head ? order : "none"));
    const sign = order === "ascending" ? 1 : -1;
    rows.sort((a, b) => sign * compare(value(a), value(b)));
    table.tBodies[0].append(...rows);
  }

  function sorting() {
    for (const table of all("table.sortable"))
      for (const head of all("thead th", table))
        head.firstElementChild.addEventListener("click", () => sort(table, head));
  }

  // --- values under the pointer -------------------------------------------------------------------

  const unscaled = (scale, value) => (scale.log ? Math.log10(value) : value);

  function place(scale, value) {
    const inside = Math.min(Math.max(value, scale.low), scale.high);
    const [low, high, at] = [scale.low, scale.high, inside].map((v) => unscaled(scale, v));
    return scale.start + ((at - low) / (high - low)) * (scale.end - scale.start);
  }

  /** Of every line that is shown and goes so far the point nearest to a place, the best first. */
  function nearest(lines, scale, where) {
    const found = [];
    for (const line of lines.filter((each) => !hidden.has(String(each.method)))) {
      const places = line.x.map((x) => place(scale, x));
      if (places[0] > where + 25 || places.at(-1) < where - 25) continue;
      const distances = places.map((each) => Math.abs(each - where));
      const distance = Math.min(...distances);
      found.push({ line, at: distances.indexOf(distance), distance });
    }
    return found.sort((a, b) => b.line.y[b.at] - a.line.y[a.at]);
  }

  const number = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });

  function describe(tip, points, label, percent) {
    tip.replaceChildren();
    const table = make("table", tip);
    const nearestPoint = points.reduce((a, b) => (b.distance < a.distance ? b : a));
    const x = number(nearestPoint.line.x[nearestPoint.at]);
    make("caption", table, "", label === "round" ? `round ${x}` : `about ${x} ${label} sent`);
    for (const { line, at } of points) {
      const row = make("tr", table);
      const swatch = document.querySelector(`#filter input[value="${line.method}"] + svg`);
      make("th", row).append(swatch.cloneNode(true), line.label);
      const digits = percent ? 2 : 4;
      make("td", row, "", `${line.y[at].toFixed(digits)}${percent ? " %" : ""}`);
      if (line.low[at] !== line.high[at])
        make("td", row, "", [line.low, line.high].map((v) => v[at].toFixed(digits - 1)).join(" to "));
    }
  }

  function mark(layer, points, x, y) {
    layer.replaceChildren();
    const nearestPoint = points.reduce((a, b) => (b.distance < a.distance ? b : a));
    const at = place(x, nearestPoint.line.x[nearestPoint.at]);
    make("path", layer, "cross").setAttribute("d", `M${at} ${y.start}V${y.end}`);
    for (const point of points) {
      const dot = make("circle", layer, `point c${point.line.method % 8}`);
      dot.setAttribute("cx", place(x, point.line.x[point.at]));
      dot.setAttribute("cy", place(y, point.line.y[point.at]));
      dot.setAttribute("r", 4.5);
    }
    return at;
  }

  function crosshair(svg, numbers, x, tip) {
    const layer = make("g", svg);
    const width = svg.viewBox.baseVal.width;
    const hide = () => {
      layer.replaceChildren();
      tip.hidden = true;
    };
    const show = (where) => {
      const points = nearest(numbers.lines, x, where);
      if (!points.length) return hide();
      const at = mark(layer, points, x, numbers.y);
      describe(tip, points, numbers.label, numbers.percent);
      tip.hidden = false;
      tip.style.left = `${(100 * at) / width}%`;
      tip.classList.toggle("left", at > width / 2);
    };
    const follow = (event) => {
      const box = svg.getBoundingClientRect();
      show(((event.clientX - box.left) / box.width) * width);
    };
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    byKeyboard(svg, numbers, x, show, hide);
  }

  function byKeyboard(svg, numbers, x, show, hide) {
    let at = 0;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e6, End: 1e6 };
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return hide();
      const shown = numbers.lines.filter((line) => !hidden.has(String(line.method)));
      if (!(event.key in steps) || !shown.length) return;
      event.preventDefault();
      const longest = shown.reduce((a, b) => (b.x.length > a.x.length ? b : a));
      at = Math.min(Math.max(at + steps[event.key], 0), longest.x.length - 1);
      show(place(x, longest.x[at]));
    });
  }

  function plots() {
    for (const figure of all("figure.plot")) {
      const numbers = JSON.parse(figure.querySelector("script").textContent);
      const tip = make("div", figure.querySelector(".canvas"), "tip");
      tip.setAttribute("role", "status");
      tip.hidden = true;
      all("svg.chart", figure).forEach((svg, i) => crosshair(svg, numbers, numbers.x[i], tip));
      logarithmic(figure);
    }
  }

  function logarithmic(figure) {
    const button = figure.querySelector(".logarithmic");
    if (!button) return;
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", on);
      all(".variant", figure).forEach((variant, i) => (variant.hidden = (i === 1) !== on));
    });
  }

  /** A picture's title would cover it as the browser's tooltip; screen readers keep it. */
  function quietTitles() {
    for (const title of all("svg > title")) {
      const svg = title.parentNode;
      svg.setAttribute("aria-label", title.textContent);
      svg.setAttribute("aria-describedby", svg.querySelector("desc").id);
      svg.removeAttribute("aria-labelledby");
      title.remove();
    }
  }

  // --- charts to save -----------------------------------------------------------------------------

  const LOOKS = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "opacity"];
  const LETTERS = ["font-family", "font-size", "font-weight", "text-anchor"];

  /** A chart that needs no style sheet: everything that is shown has its look as attributes. */
  function standalone(svg) {
    const copy = svg.cloneNode(true);
    const originals = all("*", svg);
    all("*", copy).forEach((part, i) => {
      if (part.closest("[hidden]")) return;
      const look = getComputedStyle(originals[i]);
      const names = part.matches("text") ? [...LOOKS, ...LETTERS] : LOOKS;
      if (part.matches("path, circle, text"))
        names.forEach((name) => part.setAttribute(name, look.getPropertyValue(name)));
    });
    all("[hidden]", copy).forEach((part) => part.remove());
    const { width, height } = svg.viewBox.baseVal;
    const paper = make("rect", copy);
    const fill = getComputedStyle(document.body).backgroundColor;
    for (const [name, value] of Object.entries({ width, height, fill })) paper.setAttribute(name, value);
    copy.prepend(paper);
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    return new XMLSerializer().serializeToString(copy);
  }

  function save(figure) {
    const shown = all("svg:not(.swatch)", figure).find((svg) => !svg.closest("[hidden]"));
    const link = document.createElement("a");
    link.download = `${figure.id}.svg`;
    link.href = URL.createObjectURL(new Blob([standalone(shown)], { type: "image/svg+xml" }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  // --- configs to copy ----------------------------------------------------------------------------

  async function copy(button) {
    const text = button.parentNode.querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text); // the browser forbids it: the reader can copy
      button.textContent = "Press Ctrl+C";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  }

  all(".script").forEach((control) => (control.hidden = false));
  for (const button of all(".save"))
    button.addEventListener("click", () => save(button.closest("figure")));
  all(".copy").forEach((button) => button.addEventListener("click", () => copy(button)));
  theme();
  filter();
  sorting();
  quietTitles();
  plots();
})();
