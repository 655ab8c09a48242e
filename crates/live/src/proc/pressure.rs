//! `/proc/pressure/memory`: time that tasks lost waiting for memory (PSI).

use std::time::Duration;

use super::System;
use crate::Error;

/// Time lost to stalls.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stall {
    /// Share of the last 10 s, in percent.
    #[serde(rename = "avg10_percent")]
    pub avg10: f64,
    /// Share of the last minute, in percent.
    #[serde(rename = "avg60_percent")]
    pub avg60: f64,
    /// Share of the last five minutes, in percent.
    #[serde(rename = "avg300_percent")]
    pub avg300: f64,
    /// Since the machine started.
    #[serde(rename = "total_microseconds", serialize_with = "microseconds")]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub total: Duration,
}

fn microseconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_micros() as u64)
}

/// Memory pressure.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pressure {
    /// While at least one task waited.
    pub some: Stall,
    /// While all tasks that could have run waited.
    pub full: Stall,
}

impl System {
    /// Memory pressure. The file is absent in kernels without PSI and unreadable where it is
    /// switched off (`psi=0`).
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Parse`].
    pub fn memory_pressure(&self) -> Result<Pressure, Error> {
        let text = self.text("proc/pressure/memory")?;
        let mut pressure = Pressure::default();
        let mut lines = 0;
        for line in text.lines() {
            let mut words = line.text.split_whitespace();
            let stall = match words.next() {
                Some("some") => &mut pressure.some,
                Some("full") => &mut pressure.full,
                _ => return Err(line.expected("some or full")),
            };
            lines += 1;
            let mut value = |name: &str| {
                let word = words.next().and_then(|word| word.strip_prefix(name));
                let number = word.and_then(|word| word.strip_prefix('='));
                let number = number.and_then(|number| number.parse::<f64>().ok());
                number.ok_or_else(|| line.expected("avg10=, avg60=, avg300=, total="))
            };
            *stall = Stall {
                avg10: value("avg10")?,
                avg60: value("avg60")?,
                avg300: value("avg300")?,
                total: Duration::from_micros(value("total")? as u64),
            };
        }
        if lines == 0 {
            return Err(text.ends_without("some avg10=…"));
        }
        Ok(pressure)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::machine;
    use super::*;

    #[test]
    fn pressure_file_has_some_and_full_lines() {
        let text = "some avg10=1.50 avg60=0.00 avg300=0.25 total=520752662\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=475139487\n";
        let (_folder, system) = machine(&[("proc/pressure/memory", text)]);
        let pressure = system.memory_pressure().unwrap();
        assert!((pressure.some.avg10 - 1.5).abs() < 1e-9);
        assert_eq!(pressure.full.total, Duration::from_micros(475_139_487));
        for text in ["", "some avg10=1.50", "many avg10=1"] {
            let (_folder, system) = machine(&[("proc/pressure/memory", text)]);
            assert!(system.memory_pressure().is_err(), "{text}");
        }
    }
}
