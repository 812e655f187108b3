"use strict";
// The live page of a server: reads status.json again and again and shows it. All texts are set as
// text, never as HTML: names and reasons come from other machines.
(() => {
  const EVERY = 2000; // milliseconds between two looks
  const get = (id) => document.getElementById(id);
  const make = (tag, parent, kind = "", text = "") => {
    const vector = tag === "svg" || parent instanceof SVGElement;
    const node = vector
      ? document.createElementNS("http://www.w3.org/2000/svg", tag)
      : document.createElement(tag);
    if (kind) node.setAttribute("class", kind);
    node.textContent = text;
    return parent.appendChild(node);
  };
  const set = (node, values) => {
    for (const [name, value] of Object.entries(values)) node.setAttribute(name, value);
  };

  // --- numbers and times --------------------------------------------------------------------------

  const percent = (value) => (value == null ? "–" : `${(100 * value).toFixed(2)}%`);
  const short = (value) => (value == null ? "–" : Number(value).toPrecision(3));
  const seconds = (value) => {
    if (value == null) return "–";
    if (value < 120) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
    if (value < 7200) return `${Math.round(value / 60)} min`;
    return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} days`;
  };
  const bytes = (value) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    const power = value ? Math.min(units.length - 1, Math.floor(Math.log10(value) / 3)) : 0;
    return `${(value / 1000 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
  };
  const since = (time) => seconds((Date.now() - Date.parse(time)) / 1000);
  const clock = (time) => new Date(time).toLocaleString();

  // --- the parts of the page ----------------------------------------------------------------------

  const PHASES = {
    starting: "is starting",
    waiting: "is waiting for clients",
    training: "is training",
    finished: "has finished",
    stopped: "has stopped",
  };

  function head(status) {
    get("title").textContent = status.method || "A federation";
    const asked = status.question ? ` The last question was “${status.question}”.` : "";
    get("lead").textContent =
      `The server ${PHASES[status.phase] || status.phase}. It started on ${clock(status.started || status.changed)};` +
      ` the last event was ${since(status.changed)} ago.${asked}`;
    document.title = `${status.round}/${status.rounds} ${status.method} – FedFM server`;
    const bar = document.querySelector(".progress");
    set(bar, { "aria-valuemax": status.rounds, "aria-valuenow": status.round });
    bar.firstElementChild.style.width = `${(100 * status.round) / Math.max(1, status.rounds)}%`;
  }

  function warnings(status) {
    const texts = [];
    if (!status.healthy) texts.push("The server makes no progress.");
    if (status.error) texts.push(`Last error, ${clock(status.error.time)}: ${status.error.text}`);
    for (const each of status.certificates) {
      const left = (Date.parse(each.expires) - Date.now()) / 1000;
      if (left < 0) texts.push(`${each.file} has expired. Run “fedfm keys renew”.`);
      else if (left < 30 * 86400)
        texts.push(`${each.file} expires in ${seconds(left)}. Run “fedfm keys renew”.`);
    }
    get("warnings").replaceChildren();
    for (const text of texts) make("p", get("warnings"), "warning", text);
  }

  function tiles(status) {
    const scored = status.curve.filter((point) => "test_accuracy" in point).at(-1) || {};
    const count = (state) => status.clients.filter((each) => each.state === state).length;
    const absent = ["late", "left out", "away", "revoked"]
      .filter(count)
      .map((state) => `${count(state)} ${state}`);
    const private_ = status.epsilon != null;
    const items = [
      ["Rounds", `${status.round}`, `of ${status.rounds}`],
      ["Clients in", `${count("in")}`, absent.join(", ") || `of ${status.wanted} wanted`],
      ["Test accuracy", percent(scored.test_accuracy), scored.round ? `after round ${scored.round}` : "not measured yet"],
      ["Time of a round", seconds(status.seconds_per_round), "median of the last ten"],
      ["Traffic", bytes(status.traffic.bytes_up + status.traffic.bytes_down), `${bytes(status.traffic.bytes_up)} up, ${bytes(status.traffic.bytes_down)} down`],
      ["Privacy spent", private_ ? `ε ${short(status.epsilon)}` : "–", private_ ? `δ ${status.delta}` : "no [privacy] in the config"],
    ];
    get("tiles").replaceChildren();
    for (const [name, value, about] of items) {
      const tile = make("li", get("tiles"));
      make("span", tile, "tile-name", name);
      make("span", tile, "tile-value", value);
      make("span", tile, "tile-about", about);
    }
  }

  function clients(status) {
    const table = get("clients");
    const heads = ["Client", "State", "Answered", "Late", "Left out", "Reason", "Key"];
    const row = table.tHead.rows[0];
    if (!row.cells.length) for (const name of heads) make("th", row, "", name).scope = "col";
    table.closest(".scroll").hidden = !status.clients.length;
    get("no-clients").hidden = status.clients.length > 0;
    const body = table.tBodies[0];
    body.replaceChildren();
    for (const each of status.clients) {
      const line = make("tr", body);
      make("th", line, "", each.name).scope = "row";
      const cell = (name, text, kind = "") => {
        make("td", line, kind, text == null ? "" : String(text)).dataset.head = name;
        return line.lastElementChild;
      };
      make("span", cell("State", ""), `state state-${each.state.replace(" ", "-")}`, each.state);
      cell("Answered", each.answered, "number");
      cell("Late", each.late, "number");
      cell("Left out", each.left_out, "number");
      cell("Reason", each.reason, "long");
      make("code", cell("Key", "", "long"), "", each.key || "no key");
    }
  }

  function refusals(status) {
    get("refusals").hidden = !status.refused.length;
    const list = get("refusals").querySelector("ul");
    list.replaceChildren();
    for (const each of status.refused)
      make("li", list, "", `${clock(each.time)}, node ${each.node}: ${each.reason}`);
  }

  function record(status) {
    const items = {
      Folder: status.run,
      Sums: status.secure ? "secure: the server sees only sums over clients" : "plain",
      "Config (SHA-256)": status.config,
      "Model (SHA-256)": status.model || "–",
      "Audit log": `${status.audit.entries} entries, the last is ${status.audit.hash}`,
      Certificates: status.certificates.map((each) => `${each.file} until ${clock(each.expires)}`).join("; ") || "none",
      Process: `${status.pid} on ${status.host}, fedfm ${status.version}`,
    };
    get("record").replaceChildren();
    for (const [name, value] of Object.entries(items)) {
      make("dt", get("record"), "", name);
      make("dd", get("record"), "", value);
    }
  }

  // --- curves -------------------------------------------------------------------------------------

  const CHARTS = [
    ["Accuracy", percent, { test_accuracy: "test", val_accuracy: "validation" }],
    ["Training loss", short, { train_loss: "loss" }],
    ["Traffic of a round", bytes, { bytes_up: "from clients", bytes_down: "to clients" }, 0],
    ["Time of a round", seconds, { seconds: "all clients" }, 0],
  ];
  const [WIDE, HIGH, LEFT, BOTTOM, TOP] = [560, 230, 84, 28, 12];

  function curves(status) {
    get("charts").replaceChildren();
    for (const each of [...CHARTS, ...further(status.curve)]) chart(status.curve, ...each);
    get("curves").hidden = !get("charts").children.length;
  }

  /** Return a chart for every metric that the config names beside accuracy. */
  function further(curve) {
    const names = curve.flatMap(Object.keys).map((key) => /^(?:test|val)_(.+)$/.exec(key)?.[1]);
    const metrics = new Set(names.filter((name) => name && name !== "accuracy"));
    return [...metrics].map((name) => [name, short, { [`test_${name}`]: "test", [`val_${name}`]: "validation" }]);
  }

  function chart(curve, title, format, names, base = Infinity) {
    const lines = Object.entries(names)
      .map(([key, name]) => [name, curve.filter((point) => Number.isFinite(point[key])).map((point) => [point.round, point[key]])])
      .filter(([, points]) => points.length);
    if (!lines.length) return;
    const figure = make("figure", get("charts"));
    make("h3", make("figcaption", figure), "", title);
    const svg = make("svg", figure);
    const all = lines.flatMap(([, points]) => points);
    const [first, last] = [Math.min(...all.map(([x]) => x)), Math.max(...all.map(([x]) => x))];
    let [low, high] = [Math.min(base, ...all.map(([, y]) => y)), Math.max(...all.map(([, y]) => y))];
    if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
    const x = (round) => LEFT + ((WIDE - LEFT - 12) * (round - first)) / Math.max(1, last - first);
    const y = (value) => TOP + (HIGH - BOTTOM - TOP) * (1 - (value - low) / (high - low));
    const told = lines.map(([name, points]) => `${name} ${format(points.at(-1)[1])}`).join(", ");
    set(svg, { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": `${title}, last round: ${told}` });
    const grid = make("g", svg, "grid");
    for (const value of [low, (low + high) / 2, high]) {
      set(make("path", grid), { d: `M${LEFT} ${y(value)}H${WIDE - 12}` });
      set(make("text", svg, "end", format(value)), { x: LEFT - 8, y: y(value) + 4 });
    }
    set(make("text", svg, "", `round ${first}`), { x: LEFT, y: HIGH - 6 });
    if (last > first) set(make("text", svg, "end", `${last}`), { x: WIDE - 12, y: HIGH - 6 });
    const legend = make("p", figure, "keys");
    lines.forEach(([name, points], number) => {
      const path = points.map(([a, b], index) => `${index ? "L" : "M"}${x(a)} ${y(b)}`).join("");
      set(make("path", svg, `line c${number}`), { d: path });
      const [a, b] = points.at(-1);
      set(make("circle", svg, `point c${number}`), { cx: x(a), cy: y(b), r: 4 });
      const key = make("span", legend, `c${number}`);
      make("i", key);
      key.append(`${name} ${format(b)}`);
    });
  }

  // --- again and again ----------------------------------------------------------------------------

  const PARTS = [head, warnings, tiles, curves, clients, refusals, record];
  let shown = "";
  let heard = Date.now();

  async function look() {
    try {
      const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(10000) });
      const status = await answer.json();
      heard = Date.now();
      const { beat, ...facts } = status;
      head(status);
      if (JSON.stringify(facts) !== shown) for (const part of PARTS) part(status);
      shown = JSON.stringify(facts);
      live(true);
    } catch {
      live(false);
    }
    setTimeout(look, EVERY);
  }

  function live(connected) {
    get("live").classList.toggle("lost", !connected);
    const text = connected
      ? "Live"
      : `No answer from the server since ${clock(heard)}: it has ended, or cannot be reached.`;
    const line = get("live").lastElementChild;
    if (line.textContent !== text) line.textContent = text;
  }

  function theme() {
    const [button, system] = [get("theme"), matchMedia("(prefers-color-scheme: dark)")];
    const root = document.documentElement;
    const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
    const show = () => {
      button.setAttribute("aria-pressed", dark());
      button.textContent = dark() ? "Light" : "Dark";
      button.setAttribute("aria-label", `${button.textContent} colours`);
    };
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      show();
    });
    system.addEventListener("change", show);
    show();
  }

  theme();
  look();
})();
