use super::{Plot, per_second};

fn plot() -> Plot {
    Plot::new("A sale", "Orders over two seconds.", "orders per second")
}

#[test]
fn names_marks_and_axes_are_in_the_picture() {
    let svg = plot()
        .line("sent", [(0.0, 10.0), (2.0, 40.0)])
        .line("refused", [(0.0, 0.0), (2.0, 30.0)])
        .mark(1.0, "sold out")
        .mark(5.0, "after the end")
        .to_string();
    for part in [
        "role=\"img\"",
        "<title id=\"plot-title\">A sale</title>",
        "<desc id=\"plot-description\">Orders over two seconds.</desc>",
        "prefers-color-scheme: dark",
        ">orders per second<",
        ">time since the start<",
        ">sent<",
        ">refused<",
        ">sold out<",
        "line line-1\" d=\"M76.0 384.0L936.0 ",
    ] {
        assert!(svg.contains(part), "{part}: {svg}");
    }
    assert!(!svg.contains("after the end"), "a mark outside of the picture is left out");
}

#[test]
fn texts_can_not_leave_their_element() {
    let svg = plot().line("</text><script>&\"\u{0}\u{1b}", [(0.0, 1.0)]).to_string();
    let escaped = "&lt;/text&gt;&lt;script&gt;&amp;&quot;\u{fffd}\u{fffd}<";
    assert!(svg.contains(escaped) && !svg.contains("<script"), "{svg}");
}

#[test]
fn a_plot_without_points_says_so() {
    for plot in [plot(), plot().line("none", [(f64::NAN, 1.0), (0.0, f64::INFINITY)])] {
        let svg = plot.to_string();
        assert!(svg.contains(">no data<") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

#[test]
fn long_legends_break_into_rows() {
    let names = (0..8).map(|number| format!("a quota with a name that is long, {number}"));
    let svg = names.fold(plot(), |plot, name| plot.line(name, [(0.0, 1.0)])).to_string();
    let first_row = svg.matches("y=\"50.0\">a quota").count();
    assert!((1..8).contains(&first_row) && svg.contains("y=\"72.0\">a quota"), "{svg}");
}

#[test]
fn rates_hold_every_event() {
    let times = [-1.0, 0.0, 0.4, 0.5, 1.0, 2.0, 2.1, f64::NAN];
    let rates = per_second(times, 2.0, 4);
    assert_eq!(rates, [(0.25, 4.0), (0.75, 2.0), (1.25, 2.0), (1.75, 2.0)]);
    for (length, parts) in [(0.0, 4), (f64::NAN, 4), (f64::INFINITY, 4), (2.0, 0)] {
        assert_eq!(per_second(times, length, parts), [], "{length} {parts}");
    }
}
