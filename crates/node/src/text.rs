//! Formatting of numbers.

/// A size with three digits and the unit that fits: `1.50 GB`. Units are powers of 1024.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// A size that is a whole number of some unit: `32 MB`.
pub fn whole(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let unit = (bytes.max(1).trailing_zeros() / 10).min(4);
    format!("{} {}", bytes >> (10 * unit), UNITS[unit as usize])
}

/// The size of frames of 4 KB.
pub fn frames(frames: u64) -> String {
    size(frames * contigua_units::PAGE_BYTES)
}

/// A share from 0 to 1 in percent.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A number with its digits in groups.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Two bounds, or one number where they are the same.
pub fn between(low: &str, high: &str) -> String {
    if low == high {
        low.to_owned()
    } else {
        format!("{low} to {high}")
    }
}

/// A time in the unit that fits.
pub fn duration(seconds: f64) -> String {
    match seconds {
        value if value < 120.0 => format!("{value:.1} s"),
        value if value < 7200.0 => format!("{:.0} min", value / 60.0),
        value if value < 172_800.0 => format!("{:.1} h", value / 3600.0),
        value => format!("{:.1} days", value / 86_400.0),
    }
}

/// A table: the first column to the left, the others to the right, but for a last one of words.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    explained: bool,
}

impl Table {
    /// A table whose last column explains the rows.
    pub fn explained() -> Self {
        Self {
            rows: Vec::new(),
            explained: true,
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The lines, each indented by two.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(move |row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        self.rows.iter().map(move |row| {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(column, (cell, &width))| match column {
                0 => format!("  {cell:<width$}"),
                last if self.explained && last + 1 == columns => format!("  {cell}"),
                _ => format!("  {cell:>width$}"),
            });
            cells.collect::<String>().trim_end().to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_are_formatted() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(4096), "4.00 kB");
        assert_eq!(size(25 << 30), "25.0 GB");
        assert_eq!(
            (whole(32 << 20), whole(1 << 30)),
            ("32 MB".to_owned(), "1 GB".to_owned())
        );
        assert_eq!(size(1023 << 20), "1.00 GB");
        assert_eq!(
            (count(1_234_567).as_str(), count(12).as_str()),
            ("1,234,567", "12")
        );
        assert_eq!(between("3", "3"), "3");
        assert_eq!(between("3", "4"), "3 to 4");
        assert_eq!(duration(90.0), "90.0 s");
        assert_eq!(duration(86_400.0 * 3.0), "3.0 days");
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::default();
        table.row(["a", "10"]);
        table.row(["bbb", "5"]);
        assert_eq!(
            table.lines().collect::<Vec<_>>(),
            ["  a    10", "  bbb   5"]
        );
        let mut table = Table::explained();
        table.row(["a", "10", "Ten."]);
        table.row(["bbb", "5", "Five."]);
        assert_eq!(
            table.lines().collect::<Vec<_>>(),
            ["  a    10  Ten.", "  bbb   5  Five."]
        );
    }
}
