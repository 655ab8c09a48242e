//! `/proc/meminfo`.

use contigua_units::Bytes;

use super::System;
use crate::Error;

/// The kernel's own account of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Meminfo {
    /// Names and values, those in kB as bytes, counts as they are, in the kernel's order.
    fields: Vec<(String, u64)>,
}

impl Meminfo {
    /// A size by its name: `MemFree`, `SReclaimable`.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<Bytes> {
        self.number(name).map(Bytes::new)
    }

    /// A count by its name, such as `HugePages_Total`; a size in bytes.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        let found = self.fields.iter().find(|(key, _)| key == name);
        found.map(|&(_, value)| value)
    }

    /// Everything, in the kernel's order: sizes in bytes, counts as they are.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.fields
            .iter()
            .map(|(key, value)| (key.as_str(), *value))
    }
}

impl System {
    /// The kernel's own account of memory.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Parse`].
    pub fn meminfo(&self) -> Result<Meminfo, Error> {
        let text = self.text("proc/meminfo")?;
        let fields = text.lines().map(|line| {
            let (name, rest) = line
                .text
                .split_once(':')
                .ok_or_else(|| line.expected("NAME: NUMBER"))?;
            let mut words = rest.split_whitespace();
            let value = line.number(words.next())?;
            let unit = if words.next() == Some("kB") { 1024 } else { 1 };
            Ok((name.to_owned(), value.saturating_mul(unit)))
        });
        Ok(Meminfo {
            fields: fields.collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::machine;
    use super::*;

    #[test]
    fn sizes_are_bytes_and_counts_are_counts() {
        let text = "MemTotal:       24684092 kB\nHugePages_Total:       3\n";
        let (_folder, system) = machine(&[("proc/meminfo", text)]);
        let meminfo = system.meminfo().unwrap();
        assert_eq!(
            meminfo.bytes("MemTotal"),
            Some(Bytes::new(24_684_092 << 10))
        );
        assert_eq!(meminfo.number("HugePages_Total"), Some(3));
        assert_eq!(meminfo.number("Percpu"), None);
        assert_eq!(meminfo.iter().count(), 2);
        let (_folder, system) = machine(&[("proc/meminfo", "MemTotal: lots")]);
        assert!(system.meminfo().is_err());
    }
}
