//! Figures in the text format of Prometheus (`OpenMetrics`' older sister, which all its kin read).

use std::fmt::{self, Display, Write};

use contigua_input::printable;

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It goes up and down.
    Gauge,
    /// It only grows, until its owner starts anew. Its name ends in `_total`.
    Counter,
}

/// Families of figures, one after the other.
#[derive(Default)]
pub struct Metrics {
    text: String,
    family: String,
}

/// Value of a label, as it stands in the text: without control characters, because terminals may show it.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, line) in self.0.split('\n').enumerate() {
            if index > 0 {
                out.write_str("\\n")?;
            }
            for letter in printable(line).chars() {
                if matches!(letter, '\\' | '"') {
                    out.write_char('\\')?;
                }
                out.write_char(letter)?;
            }
        }
        Ok(())
    }
}

impl Metrics {
    /// Begins a family, whose figures follow.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        debug_assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}");
        name.clone_into(&mut self.family);
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A figure of the family that was begun last.
    pub fn figure(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(&self.family);
        for (index, (name, label)) in labels.iter().enumerate() {
            let open = if index == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{open}{name}=\"{}\"", Escaped(label));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }

    /// A family of one figure.
    pub fn single(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.figure(&[], value);
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_families_and_labels() {
        let mut metrics = Metrics::default();
        metrics.family("a_bytes", Kind::Gauge, "Some.");
        metrics.figure(&[("node", "0"), ("name", "x\"\\\ny")], 7);
        metrics.single("b_total", Kind::Counter, "More.", 1.5);
        let expected = "# HELP a_bytes Some.\n# TYPE a_bytes gauge\n\
                        a_bytes{node=\"0\",name=\"x\\\"\\\\\\ny\"} 7\n\
                        # HELP b_total More.\n# TYPE b_total counter\nb_total 1.5\n";
        assert_eq!(metrics.into_text(), expected);
    }

    #[test]
    fn labels_have_no_control_characters() {
        let mut metrics = Metrics::default();
        metrics.family("a", Kind::Gauge, "Some.");
        metrics.figure(&[("command", "\x1b]0;owned\x07\n\u{9b}2J")], 1);
        assert!(
            metrics
                .into_text()
                .ends_with("a{command=\"\\\\u{1b}]0;owned\\\\u{7}\\n\\\\u{9b}2J\"} 1\n")
        );
    }
}
