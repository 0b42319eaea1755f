// The chart of orders per second: one area for each outcome, on top of each other.

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, SPAN] = [600, 200, 120_000];
/** A rate is that of the last second or so: single samples would jump. */
const SMOOTH = 1000;

/** Returns the rates between two points, for each outcome. */
function ratesBetween(from, to) {
  const seconds = (to.at_ms - from.at_ms) / 1000;
  return to.counts.map((count, outcome) => (seconds > 0 ? (count - from.counts[outcome]) / seconds : 0));
}

/** Returns the point that is about a second before the one at this index. */
function before(points, index) {
  let from = index;
  while (from > 0 && points[index].at_ms - points[from].at_ms < SMOOTH) from -= 1;
  return points[from];
}

export class Chart {
  constructor(svg, outcomes) {
    this.points = [];
    this.areas = Array.from({ length: outcomes }, (_, outcome) => {
      const path = document.createElementNS(SVG, "path");
      // A style of its own is allowed to a script, and not to an attribute in the page.
      path.style.fill = `var(--c${outcome})`;
      svg.append(path);
      return path;
    });
  }

  restart(points) {
    this.points = points;
  }

  /** Adds a point. Returns the present rates and the peak of their sum. */
  add(point) {
    const last = this.points.at(-1);
    // A server that was started again counts from zero.
    if (last && last.at_ms >= point.at_ms) {
      if (last.at_ms === point.at_ms) this.points.pop();
      else this.points = [];
    }
    this.points.push(point);
    while (point.at_ms - this.points[0].at_ms > SPAN) this.points.shift();
    return this.draw();
  }

  draw() {
    const { points } = this;
    const rates = points.map((point, index) => ratesBetween(before(points, index), point));
    const sums = rates.map((rate) => rate.reduce((sum, one) => sum + one, 0));
    const peak = Math.max(1, ...sums);
    const end = points.at(-1).at_ms;
    const x = (point) => (WIDTH * (1 - (end - point.at_ms) / SPAN)).toFixed(1);
    const y = (value) => (HEIGHT * (1 - value / peak)).toFixed(1);
    const base = points.map(() => 0);
    this.areas.forEach((area, outcome) => {
      const lower = points.map((point, index) => `${x(point)},${y(base[index])}`);
      points.forEach((_, index) => { base[index] += rates[index][outcome]; });
      const upper = points.map((point, index) => `${x(point)},${y(base[index])}`);
      area.setAttribute("d", `M${upper.join("L")}L${lower.reverse().join("L")}Z`);
    });
    return { rates: rates.at(-1), peak };
  }
}
