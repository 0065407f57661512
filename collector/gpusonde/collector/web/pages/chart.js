// Traces of several GPUs from hours to ticks. The collector gives the bounds of what lies behind each pixel.

const COLOURS = ["#2878c8", "#d1600a", "#2e9d5b", "#b84592", "#8a6d00", "#17929c", "#7a56c8", "#c03a3a"];
const LEAST_S = 1;
const WAIT_MS = 60;
const LANE = 14;

export class Chart {
  // read(run, fields) resolves to decimated samples; onMetrics(all, shown) hears what there is.
  constructor(box, read, onMetrics) {
    this.box = box;
    this.read = read;
    this.onMetrics = onMetrics;
    this.metric = "";
    this.turn = 0;
    this.plot = null;
    this.resized = new ResizeObserver(() => {
      if (this.plot && this.box.clientWidth !== this.plot.width) {
        this.plot.setSize({ width: this.box.clientWidth, height: this.plot.height });
        this.fetchSoon();
      }
    });
    this.resized.observe(box);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.build();
    this.dark.addEventListener("change", this.redraw);
  }

  close() {
    clearTimeout(this.timer);
    this.resized.disconnect();
    this.dark.removeEventListener("change", this.redraw);
    this.plot?.destroy();
  }

  async show(members, start, end, levels) {
    const follows = !this.plot || (this.from === this.start && this.to === this.end);
    const same = this.members && members.map((one) => one.run_id).join() === this.members.map((one) => one.run_id).join();
    Object.assign(this, { members, start, end, levels });
    if (follows) [this.from, this.to] = [start, end];
    if (!same) {
      this.plot?.destroy();
      this.plot = null;
    }
    await this.fetch();
  }

  setMetric(metric) {
    this.metric = metric;
    this.fetch();
  }

  key(key) {
    const middle = (this.from + this.to) / 2;
    const wide = this.to - this.from;
    const zoom = { w: 0.5, W: 0.5, "+": 0.5, s: 2, S: 2, "-": 2 }[key];
    const move = { a: -0.25, A: -0.25, ArrowLeft: -0.25, d: 0.25, D: 0.25, ArrowRight: 0.25 }[key];
    if (zoom) this.go(middle - (wide * zoom) / 2, middle + (wide * zoom) / 2);
    else if (move) this.go(this.from + wide * move, this.to + wide * move);
    else if (key === "0" || key === "Home") this.go(this.start, this.end);
    else return false;
    return true;
  }

  // What is there already is scaled at once; finer samples follow.
  go(from, to) {
    const wide = Math.min(Math.max(to - from, LEAST_S), this.end - this.start);
    const left = Math.min(Math.max(from, this.start), this.end - wide);
    [this.from, this.to] = [left, left + wide];
    this.plot?.setScale("x", { min: this.from, max: this.to });
    this.fetchSoon();
  }

  fetchSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(), WAIT_MS);
  }

  async fetch() {
    const turn = ++this.turn;
    const wide = this.to - this.from;
    // A little more than is shown, so that moving does not show an edge.
    const [from, to] = [Math.max(this.start, this.from - wide / 4), Math.min(this.end, this.to + wide / 4)];
    const count = Math.min(2000, Math.max(200, Math.round((this.box.clientWidth * (to - from)) / wide)));
    const fields = {
      start_time: new Date(Math.floor(from * 1000)).toISOString(), end_time: new Date(Math.ceil(to * 1000) + 1).toISOString(),
      bin_count: count, metrics: this.metric ? [this.metric] : [],
    };
    const found = await Promise.all(this.members.map((one) => this.read(one.run_id, fields).catch((error) => {
      if (error.name !== "AbortError") console.debug("samples", error.message);
      return null;
    })));
    if (turn !== this.turn) return;
    const first = found.find((one) => one && one.metrics.length);
    if (!first) return;
    this.metric = first.metrics[0].metric;
    this.onMetrics(first.available_metrics, this.metric);
    const start = Date.parse(first.start_time) / 1000;
    this.data = align(found, start, (Date.parse(first.end_time) / 1000 - start) / count);
    if (this.plot && this.shownMetric === this.metric) {
      this.plot.batch(() => {
        this.plot.setData(this.data, false);
        this.plot.setScale("x", { min: this.from, max: this.to });
        this.plot.setScale("y", bounds(this.data));
      });
    } else this.build();
  }

  build() {
    if (!this.data) return;
    this.plot?.destroy();
    this.shownMetric = this.metric;
    const style = getComputedStyle(document.body);
    const [ink, line] = [style.color, style.getPropertyValue("--line")];
    const series = [{}];
    const bands = [];
    this.members.forEach((one, index) => {
      const stroke = COLOURS[index % COLOURS.length];
      const name = one.gpu_uuid;
      const common = { stroke, width: 1, points: { show: (plot) => isSparse(plot) }, spanGaps: false };
      series.push({ ...common, label: `${name} most` }, { ...common, label: `${name} least` });
      bands.push({ series: [series.length - 2, series.length - 1], fill: `${stroke}55` });
    });
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
    this.plot = new uPlot({
      width: this.box.clientWidth, height: 320 + LANE * this.levels.length, series, bands,
      padding: [LANE * this.levels.length + 6, 8, 0, 0],
      legend: { show: this.members.length < 3, live: true },
      scales: { x: { time: true, min: this.from, max: this.to, range: (_plot, least, most) => [least, most] }, y: { auto: false, ...bounds(this.data) } },
      axes: [axis, { ...axis, label: this.metric, size: 70 }],
      cursor: { drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => this.go(this.start, this.end) } },
      hooks: {
        draw: [(plot) => this.drawCycles(plot, ink)],
        setSelect: [(plot) => {
          if (plot.select.width < 4) return;
          const [from, to] = [plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")];
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          this.go(from, to);
        }],
      },
    }, this.data, this.box);
  }

  // A lane above the traces for each level, the longest on top: a mark where a cycle starts, its name on the left.
  drawCycles(plot, ink) {
    const paint = plot.ctx;
    const ratio = devicePixelRatio || 1;
    const { left, top, width } = plot.bbox;
    paint.save();
    paint.font = `${11 * ratio}px system-ui, sans-serif`;
    paint.textBaseline = "middle";
    this.levels.forEach((level, index) => {
      const middle = top - (index + 0.5) * LANE * ratio;
      const colour = COLOURS[(index + 4) % COLOURS.length];
      paint.fillStyle = ink;
      paint.textAlign = "right";
      paint.fillText(level.name, left - 6 * ratio, middle);
      let edge = null;
      level.starts.forEach((start, place) => {
        const x = plot.valToPos(start, "x", true);
        if (edge !== null && x > left && edge < left + width) {
          const [from, to] = [Math.max(edge, left), Math.min(x, left + width)];
          paint.fillStyle = place % 2 ? colour : `${colour}66`;
          paint.fillRect(from, middle - 4 * ratio, Math.max(ratio, to - from - ratio), 8 * ratio);
        }
        edge = x;
      });
    });
    paint.restore();
  }
}

const isSparse = (plot) => plot.data[0].length < 150;

function bounds(data) {
  let [least, most] = [Infinity, -Infinity];
  for (const column of data.slice(1)) {
    for (const value of column) {
      if (value < least) least = value;
      if (value > most) most = value;
    }
  }
  if (!Number.isFinite(least)) return { min: 0, max: 1 };
  const room = (most - least || Math.abs(most) || 1) * 0.05;
  return { min: least >= 0 && least < most / 2 ? 0 : least - room, max: most + room };
}

// One row for each bin that any GPU has. uPlot draws across undefined (another GPU's bin) and leaves null open (a hole).
function align(found, start, bin) {
  const placeOf = (offset) => Math.floor(offset / bin);
  const places = new Map();
  const holes = found.map((one) => {
    const beginnings = [];
    const least = Math.max(3 * parseFloat(one?.interval || "0"), 2.5 * Math.max(bin, parseFloat(one?.resolution || "0")));
    (one?.offset_seconds || []).forEach((offset, index, all) => {
      places.set(placeOf(offset), Math.min(places.get(placeOf(offset)) ?? Infinity, offset));
      if (index && offset - all[index - 1] > least) beginnings.push(placeOf(all[index - 1]) + 1);
    });
    return beginnings;
  });
  for (const place of holes.flat()) if (!places.has(place)) places.set(place, place * bin);
  const order = [...places.keys()].sort((a, b) => a - b);
  const rows = new Map(order.map((place, row) => [place, row]));
  const data = [order.map((place) => start + places.get(place))];
  found.forEach((one, index) => {
    const [most, least] = [new Array(order.length), new Array(order.length)];
    for (const place of holes[index]) most[rows.get(place)] = least[rows.get(place)] = null;
    if (one?.metrics.length) {
      const { minimums, maximums } = one.metrics[0];
      one.offset_seconds.forEach((offset, at) => {
        const row = rows.get(placeOf(offset));
        // What the driver did not give comes as the text NaN.
        most[row] = Number.isFinite(+maximums[at]) ? +maximums[at] : null;
        least[row] = Number.isFinite(+minimums[at]) ? +minimums[at] : null;
      });
    }
    data.push(most, least);
  });
  return data;
}
