// Time and cost as a plane of two logarithmic axes: points, where they are uncertain with the bounds of both.

import { el, svg } from "./parts.js";

const HIGH = 340;
const ROOM = { left: 66, right: 18, top: 14, bottom: 34 };
const APART = { x: 64, y: 40 };
const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;
const TIMES = [
  ...[0.001, 0.01, 0.1, 1, 10].flatMap((one) => [one, 2 * one, 5 * one]).slice(0, -1),
  ...[1, 2, 3, 5, 7, 10, 20, 30].map((count) => count * MINUTE), ...[1, 2, 3, 5, 7, 10, 15].map((count) => count * HOUR),
  ...[1, 2, 3, 5, 7, 10, 20, 30, 100, 365].map((count) => count * DAY),
];
const MONEY = Array.from({ length: 14 }, (_, power) => 10 ** (power - 6)).flatMap((one) => [one, 2 * one, 5 * one]);

export class Plane {
  // onDrag(seconds) hears where on the axis of time somebody points; without it points are chosen.
  constructor(box, name, onDrag = null) {
    this.box = box;
    this.name = name;
    this.points = [];
    this.chosen = -1;
    this.told = el("p", { role: "status", className: "note" });
    this.picture = svg("svg", { class: "plane", role: "img", tabindex: 0, height: HIGH });
    box.append(this.picture, this.told);
    box.hidden = true;
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(box);
    this.picture.addEventListener("pointermove", (event) => {
      if (!onDrag) this.choose(this.nearest(event));
      else if (event.buttons) onDrag(this.timeAt(event));
    });
    this.picture.addEventListener("pointerdown", (event) => {
      if (!onDrag) return;
      this.picture.setPointerCapture(event.pointerId);
      onDrag(this.timeAt(event));
    });
    this.picture.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!by || onDrag) return;
      event.preventDefault();
      this.choose(Math.min(this.points.length - 1, Math.max(0, this.chosen + by)));
    });
  }

  close() {
    this.resized.disconnect();
  }

  // Points by time: { time, cost, text, sign } and, where they are known,
  // timeLow, timeHigh, costLow, costHigh.
  show(points, { line = false, deadline = NaN, label = "" } = {}) {
    const same = points.length === this.points.length && points.every((point, index) => point.text === this.points[index].text);
    Object.assign(this, { points, line, deadline, chosen: same ? this.chosen : -1 });
    this.box.hidden = !points.length;
    this.picture.setAttribute("aria-label", label);
    if (!same) this.told.textContent = "";
    this.draw();
  }

  choose(index) {
    if (index < 0 || index >= this.points.length) return;
    this.chosen = index;
    this.told.textContent = this.points[index].text;
    this.draw();
  }

  nearest(event) {
    const away = this.points.map(({ time, cost }) => Math.hypot(this.x(time) - event.offsetX, this.y(cost) - event.offsetY));
    return away.indexOf(Math.min(...away));
  }

  timeAt(event) {
    const [least, most] = this.times;
    const share = (event.clientX - this.picture.getBoundingClientRect().left - ROOM.left) / (this.wide - ROOM.left - ROOM.right);
    return least * (most / least) ** Math.min(1, Math.max(0, share));
  }

  x(time) {
    return ROOM.left + shareOf(time, this.times) * (this.wide - ROOM.left - ROOM.right);
  }

  y(cost) {
    return HIGH - ROOM.bottom - shareOf(cost, this.costs) * (HIGH - ROOM.top - ROOM.bottom);
  }

  draw() {
    this.wide = this.box.clientWidth;
    this.picture.setAttribute("width", this.wide);
    if (!this.points.length || !this.wide) return this.picture.replaceChildren();
    this.times = boundsOf(this.points.flatMap(({ time, timeLow, timeHigh }) => [time, timeLow, timeHigh]));
    this.costs = boundsOf(this.points.flatMap(({ cost, costLow, costHigh }) => [cost, costLow, costHigh]));
    const parts = this.axes();
    if (this.line) {
      const way = this.points.map(({ time, cost }, index) => (
        index ? `H${this.x(time)}V${this.y(cost)}` : `M${this.x(time)} ${this.y(cost)}`
      ));
      parts.push(svg("path", { class: "front", d: way.join("") }));
    }
    this.points.forEach((point, index) => parts.push(this.mark(point, index === this.chosen)));
    if (Number.isFinite(this.deadline)) {
      const x = this.x(Math.min(Math.max(this.deadline, this.times[0]), this.times[1]));
      parts.push(svg("path", { class: "deadline", d: `M${x} ${ROOM.top}V${HIGH - ROOM.bottom}` }),
        svg("path", { class: "handle", d: `M${x - 7} ${ROOM.top - 8}h14l-7 12z` }));
    }
    this.picture.replaceChildren(...parts);
  }

  axes() {
    const parts = [];
    const [right, low] = [this.wide - ROOM.right, HIGH - ROOM.bottom];
    for (const time of spread(TIMES, this.times, (one) => this.x(one), APART.x)) {
      parts.push(svg("path", { class: "grid", d: `M${this.x(time)} ${ROOM.top}V${low}` }),
        svg("text", { x: this.x(time), y: low + 16, "text-anchor": "middle" }, tickText(time)));
    }
    for (const cost of spread(MONEY, this.costs, (one) => this.y(one), APART.y)) {
      parts.push(svg("path", { class: "grid", d: `M${ROOM.left} ${this.y(cost)}H${right}` }),
        svg("text", { x: ROOM.left - 6, y: this.y(cost) + 4, "text-anchor": "end" }, `$${+cost.toPrecision(3)}`));
    }
    parts.push(svg("text", { x: right, y: HIGH - 3, "text-anchor": "end", class: "axis" }, this.name));
    return parts;
  }

  mark({ time, cost, timeLow, timeHigh, costLow, costHigh, sign }, isChosen) {
    const [x, y] = [this.x(time), this.y(cost)];
    const bars = Number.isFinite(timeLow) ? `M${this.x(timeLow)} ${y}H${this.x(timeHigh)}M${x} ${this.y(costLow)}V${this.y(costHigh)}` : "";
    return svg("g", { class: `mark ${sign}${isChosen ? " chosen" : ""}` },
      svg("path", { class: "bar", d: bars }), signOf(sign, x, y, isChosen ? 7 : 5));
  }
}

// Form and filling, not colour alone, tell them apart.
export function signOf(sign, x, y, size) {
  if (sign === "unfit") return svg("path", { d: `M${x - size} ${y - size}l${2 * size} ${2 * size}m0 ${-2 * size}l${-2 * size} ${2 * size}` });
  if (sign === "here") return svg("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size });
  return svg("circle", { cx: x, cy: y, r: size });
}

function tickText(seconds) {
  const [unit, name] = [[DAY, "d"], [HOUR, "h"], [MINUTE, "min"], [1, "s"]].find(([least]) => seconds >= least) || [0.001, "ms"];
  return `${+(seconds / unit).toPrecision(3)} ${name}`;
}

const shareOf = (value, [least, most]) => Math.log(value / least) / Math.log(most / least);

function boundsOf(values) {
  const known = values.filter((value) => value > 0 && Number.isFinite(value));
  const [least, most] = [Math.min(...known), Math.max(...known)];
  const room = Math.max(1.15, (most / least) ** 0.04);
  return [least / room, most * room];
}

// Those that fit between the bounds and keep apart; where it is fewer than two, the bounds themselves.
function spread(ticks, [least, most], placeOf, apart) {
  const kept = [];
  for (const tick of ticks) {
    if (tick < least || tick > most) continue;
    if (!kept.length || Math.abs(placeOf(tick) - placeOf(kept[kept.length - 1])) > apart) kept.push(tick);
  }
  return kept.length > 1 ? kept : [least, most];
}
