//! `/proc/vmstat` and its like: lines of a name and a number.

use super::System;
use crate::Error;

/// Counters by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Counters {
    counters: Vec<(String, u64)>,
}

impl Counters {
    /// A counter by its name; `None` where this kernel does not have it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        let found = self.counters.iter().find(|(key, _)| key == name);
        found.map(|&(_, value)| value)
    }

    /// A counter by its name, 0 where this kernel does not have it.
    #[must_use]
    pub fn or_zero(&self, name: &str) -> u64 {
        self.get(name).unwrap_or(0)
    }

    /// All of them, in the kernel's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        let counters = self.counters.iter();
        counters.map(|(key, value)| (key.as_str(), *value))
    }

    /// Long-term pins that are held: those taken less those released. Kernels before 5.6 count
    /// none.
    #[must_use]
    pub fn pins_held(&self) -> Option<u64> {
        let taken = self.get("nr_foll_pin_acquired")?;
        // Per-CPU differences reach the counters late, so that either may be ahead.
        Some(taken.saturating_sub(self.or_zero("nr_foll_pin_released")))
    }
}

impl System {
    /// The kernel's memory counters.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Parse`].
    pub fn vmstat(&self) -> Result<Counters, Error> {
        let text = self.text("proc/vmstat")?;
        let counters = text.lines().map(|line| {
            let (name, value) = line
                .text
                .split_once(' ')
                .ok_or_else(|| line.expected("NAME NUMBER"))?;
            // A counter that is off by a few may be printed as a negative number.
            let value = match value.trim().strip_prefix('-') {
                Some(_) => 0,
                None => line.number(Some(value.trim()))?,
            };
            Ok((name.to_owned(), value))
        });
        Ok(Counters {
            counters: counters.collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::machine;

    #[test]
    fn counters_have_names_and_pins_are_a_difference() {
        let text = "nr_foll_pin_acquired 128612\nnr_foll_pin_released 128600\nnr_dirty -3\n";
        let (_folder, system) = machine(&[("proc/vmstat", text)]);
        let counters = system.vmstat().unwrap();
        assert_eq!(counters.pins_held(), Some(12));
        assert_eq!(counters.get("nr_dirty"), Some(0));
        assert_eq!(
            (counters.get("other"), counters.or_zero("other")),
            (None, 0)
        );
        let (_folder, system) = machine(&[("proc/vmstat", "a 1\nb")]);
        let error = system.vmstat().unwrap_err().to_string();
        assert!(error.contains("vmstat:2: expected NAME NUMBER"), "{error}");
    }
}
