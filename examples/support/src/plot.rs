//! [`Plot`]: lines over time, as an SVG picture.
//!
//! The picture needs no script and no font. It follows the light or dark scheme of the reader, tells its
//! lines apart without color too, and has a title and a description for screen readers.

mod axis;
#[cfg(test)]
mod tests;

use std::fmt::{self, Display, Write as _};

use self::axis::Axis;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 76.0;
/// The right end of the lines.
const END: f64 = WIDTH - 24.0;
/// The height of zero.
const FLOOR: f64 = HEIGHT - 56.0;
/// The baseline of the title.
const TITLE: f64 = 28.0;
/// The height of a row of the legend.
const ROW: f64 = 22.0;
/// About the width of a letter of the legend.
const LETTER: f64 = 7.4;
/// The line of a legend entry, with the space around it.
const SWATCH: f64 = 46.0;
/// How many lines `plot.css` tells apart.
const STYLES: usize = 6;

/// Lines over time, which begins at 0. Its text is an SVG document.
///
/// ```
/// use example_support::plot::{Plot, per_second};
///
/// let refused = [0.1, 0.2, 0.25, 1.7];
/// let plot = Plot::new("A sale", "Refused orders per second, over two seconds.", "orders per second")
///     .line("refused", per_second(refused, 2.0, 4))
///     .mark(1.0, "sold out");
/// assert!(plot.to_string().starts_with("<svg "));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Plot {
    title: String,
    description: String,
    unit: String,
    lines: Vec<(String, Vec<(f64, f64)>)>,
    marks: Vec<(f64, String)>,
}

impl Plot {
    /// Begins a picture. `description` says in a sentence or two what it shows, for readers that do not see
    /// it, and `unit` what the heights count.
    pub fn new(
        title: impl Into<String>,
        description: impl Into<String>,
        unit: impl Into<String>,
    ) -> Self {
        Self {
            title: title.into(),
            description: description.into(),
            unit: unit.into(),
            lines: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// Adds a line through points, each a time in seconds and a height. Points that are not finite are left
    /// out. Six lines look different from each other.
    pub fn line(
        mut self,
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let is_finite = |(x, y): &(f64, f64)| x.is_finite() && y.is_finite();
        self.lines.push((name.into(), points.into_iter().filter(is_finite).collect()));
        self
    }

    /// Marks a time, in seconds, with a vertical line and a few words.
    pub fn mark(mut self, at: f64, label: impl Into<String>) -> Self {
        self.marks.push((at, label.into()));
        self
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.lines.iter().flat_map(|(_, points)| points.iter().copied())
    }

    /// Returns where each entry of the legend stands, and how many rows it has.
    fn legend(&self) -> (Vec<(f64, usize)>, usize) {
        let (mut x, mut row, mut places) = (LEFT, 0, Vec::new());
        for (name, _) in &self.lines {
            let width = SWATCH + LETTER * name.chars().count() as f64;
            if x > LEFT && x + width > END {
                (x, row) = (LEFT, row + 1);
            }
            places.push((x, row));
            x += width;
        }
        (places, row + 1)
    }
}

impl Display for Plot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (places, rows) = self.legend();
        let area = Area::of(self, rows);
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-labelledby=\"plot-title plot-description\">\n\
             <title id=\"plot-title\">{title}</title>\n<desc id=\"plot-description\">{}</desc>\n\
             <style>\n{}</style>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
             <text class=\"title\" x=\"{LEFT}\" y=\"{TITLE}\">{title}</text>",
            Escaped(&self.description),
            include_str!("plot/plot.css"),
            title = Escaped(&self.title),
        )?;
        area.write_axes(out, &self.unit)?;
        for (at, label) in &self.marks {
            area.write_mark(out, *at, label)?;
        }
        for (number, ((name, points), (left, row))) in self.lines.iter().zip(places).enumerate() {
            let (style, y) = (number % STYLES, TITLE + ROW * (row + 1) as f64);
            writeln!(
                out,
                "<path class=\"line line-{style}\" d=\"M{left:.1} {:.1}h28\"/>\
                 <text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
                y - 4.0,
                left + 34.0,
                Escaped(name)
            )?;
            area.write_line(out, style, points)?;
        }
        if self.points().next().is_none() {
            let (x, y) = (f64::midpoint(LEFT, END), f64::midpoint(area.top, FLOOR));
            writeln!(out, "<text class=\"time\" x=\"{x:.1}\" y=\"{y:.1}\">no data</text>")?;
        }
        writeln!(out, "</svg>")
    }
}

/// The part of the picture that the lines are in.
struct Area {
    /// The baseline of the unit.
    unit: f64,
    top: f64,
    last: f64,
    time: Axis,
    height: Axis,
}

impl Area {
    fn of(plot: &Plot, rows_of_legend: usize) -> Self {
        let last = plot.points().map(|(x, _)| x).fold(0.0, f64::max);
        let highest = plot.points().map(|(_, y)| y).fold(0.0, f64::max);
        // Below the legend stand the unit and, in a row of their own, the words of the marks.
        let marks = if plot.marks.is_empty() { 0.0 } else { ROW };
        let top = TITLE + 32.0 + ROW * rows_of_legend as f64 + marks;
        Self {
            unit: top - marks - 9.0,
            top,
            last,
            time: Axis::of_time(last),
            height: Axis::of_numbers(highest),
        }
    }

    fn x(&self, at: f64) -> f64 {
        LEFT + (END - LEFT) * self.time.share(at)
    }

    fn y(&self, value: f64) -> f64 {
        FLOOR - (FLOOR - self.top) * self.height.share(value)
    }

    fn write_axes(&self, out: &mut fmt::Formatter<'_>, unit: &str) -> fmt::Result {
        for (value, label) in self.height.ticks() {
            let y = self.y(value);
            writeln!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{END}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"number\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
                LEFT - 8.0,
                y + 4.0
            )?;
        }
        for (at, label) in self.time.ticks() {
            let x = self.x(at);
            writeln!(
                out,
                "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{FLOOR}\" y2=\"{:.1}\"/>\
                 <text class=\"time\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>",
                FLOOR + 5.0,
                FLOOR + 20.0
            )?;
        }
        writeln!(
            out,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{END}\" y1=\"{FLOOR}\" y2=\"{FLOOR}\"/>\n\
             <text class=\"time\" x=\"{:.1}\" y=\"{:.1}\">time since the start</text>\n\
             <text class=\"unit\" x=\"{LEFT}\" y=\"{:.1}\">{}</text>",
            f64::midpoint(LEFT, END),
            FLOOR + 42.0,
            self.unit,
            Escaped(unit),
        )
    }

    fn write_mark(&self, out: &mut fmt::Formatter<'_>, at: f64, label: &str) -> fmt::Result {
        if !(0.0..=self.last).contains(&at) {
            return Ok(());
        }
        let (x, top) = (self.x(at), self.top);
        // Near the end the words end at the mark.
        let (class, shift) = if x > f64::midpoint(LEFT, END) + 0.3 * (END - LEFT) {
            ("mark-label number", 2.0)
        } else {
            ("mark-label", -2.0)
        };
        writeln!(
            out,
            "<line class=\"mark\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{FLOOR}\"/>\
             <text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + shift,
            top - 7.0,
            Escaped(label)
        )
    }

    fn write_line(
        &self,
        out: &mut fmt::Formatter<'_>,
        style: usize,
        points: &[(f64, f64)],
    ) -> fmt::Result {
        let Some(((first, value), rest)) = points.split_first() else { return Ok(()) };
        write!(
            out,
            "<path class=\"line line-{style}\" d=\"M{:.1} {:.1}",
            self.x(*first),
            self.y(*value)
        )?;
        for (at, value) in rest {
            write!(out, "L{:.1} {:.1}", self.x(*at), self.y(*value))?;
        }
        writeln!(out, "\"/>")
    }
}

/// A text within the document. XML has no way to write most control characters.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => out.write_str("&amp;")?,
                '<' => out.write_str("&lt;")?,
                '>' => out.write_str("&gt;")?,
                '"' => out.write_str("&quot;")?,
                '\u{fffe}' | '\u{ffff}' => out.write_char(char::REPLACEMENT_CHARACTER)?,
                _ if letter.is_control() => out.write_char(char::REPLACEMENT_CHARACTER)?,
                _ => out.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// Returns how many events a second there were, in so many equal parts of a length of time: the middle of
/// each part, and the rate in it.
///
/// `times` and `length` are in seconds. Times outside of `0..=length` are left out, and an event at the very
/// end belongs to the last part.
pub fn per_second(
    times: impl IntoIterator<Item = f64>,
    length: f64,
    parts: usize,
) -> Vec<(f64, f64)> {
    if parts == 0 || !(length > 0.0 && length.is_finite()) {
        return Vec::new();
    }
    let width = length / parts as f64;
    let mut counts = vec![0_u64; parts];
    for time in times.into_iter().filter(|time| (0.0..=length).contains(time)) {
        counts[((time / width) as usize).min(parts - 1)] += 1;
    }
    let middle = |part: usize| (part as f64 + 0.5) * width;
    counts.iter().enumerate().map(|(part, n)| (middle(part), *n as f64 / width)).collect()
}
