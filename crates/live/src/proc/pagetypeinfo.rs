//! `/proc/pagetypeinfo`: pageblocks and free blocks by migrate type. Only root may read it.

use super::{System, node_and_zone};
use crate::Error;

/// Numbers of a zone by migrate type.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TypedBlocks {
    /// The memory node.
    pub node: u32,
    /// The zone's name.
    pub zone: String,
    /// The migrate type: `Unmovable`, `Movable`, `Reclaimable`, …
    pub migrate_type: String,
    /// Pageblocks of this type.
    pub pageblocks: u64,
    /// Free blocks of this type, by order. The kernel stops counting a list at 100,000.
    pub free: Vec<u64>,
}

/// The machine's migrate types.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PageTypes {
    /// Frames of 4 KB in a pageblock.
    pub pageblock_frames: u64,
    /// Numbers by zone and type.
    pub zones: Vec<TypedBlocks>,
}

impl PageTypes {
    /// Pageblocks of a type in all zones.
    #[must_use]
    pub fn pageblocks(&self, migrate_type: &str) -> u64 {
        let zones = self.zones.iter();
        let of_type = zones.filter(|zone| zone.migrate_type == migrate_type);
        of_type.map(|zone| zone.pageblocks).sum()
    }
}

impl System {
    /// The machine's migrate types.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Parse`].
    pub fn page_types(&self) -> Result<PageTypes, Error> {
        let text = self.text("proc/pagetypeinfo")?;
        let mut types = PageTypes::default();
        let mut columns: Vec<&str> = Vec::new();
        for line in text.lines() {
            if let Some(rest) = line.text.strip_prefix("Pages per block:") {
                types.pageblock_frames = line.number(Some(rest.trim()))?;
            } else if let Some(rest) = line.text.strip_prefix("Number of blocks type") {
                columns = rest.split_whitespace().collect();
            } else if let Some((node, zone, rest)) = node_and_zone(&line) {
                let mut words = rest.trim_start_matches(',').split_whitespace();
                if columns.is_empty() {
                    let (Some("type"), Some(name)) = (words.next(), words.next()) else {
                        return Err(line.expected("Node N, zone NAME, type TYPE"));
                    };
                    let free = words.map(|word| line.number(Some(word.trim_start_matches('>'))));
                    types.zones.push(TypedBlocks {
                        node,
                        zone: zone.to_owned(),
                        migrate_type: name.to_owned(),
                        pageblocks: 0,
                        free: free.collect::<Result<_, _>>()?,
                    });
                    continue;
                }
                for name in &columns {
                    let count = line.number(words.next())?;
                    let of = types.zones.iter_mut().find(|typed| {
                        typed.node == node && typed.zone == zone && typed.migrate_type == *name
                    });
                    if let Some(typed) = of {
                        typed.pageblocks = count;
                    }
                }
            }
        }
        if columns.is_empty() || types.pageblock_frames == 0 {
            return Err(text.ends_without("the number of blocks of each type"));
        }
        Ok(types)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::machine;

    const TEXT: &str = "\
Page block order: 9
Pages per block:  512

Free pages count per migrate type at order       0      1      2
Node    0, zone   Normal, type    Unmovable    542    944    872
Node    0, zone   Normal, type      Movable   >100000   4258   2196

Number of blocks type     Unmovable      Movable
Node 0, zone   Normal           81        10498
";

    #[test]
    fn pagetypeinfo_has_pageblocks_and_free_blocks() {
        let (_folder, system) = machine(&[("proc/pagetypeinfo", TEXT)]);
        let types = system.page_types().unwrap();
        assert_eq!(types.pageblock_frames, 512);
        assert_eq!(types.pageblocks("Unmovable"), 81);
        assert_eq!(types.pageblocks("Movable"), 10_498);
        assert_eq!(types.zones[0].free, [542, 944, 872]);
        assert_eq!(types.zones[1].free[0], 100_000);
    }

    #[test]
    fn a_truncated_pagetypeinfo_is_an_error() {
        for end in [0, 30, 100, 200, TEXT.len() - 20] {
            let (_folder, system) = machine(&[("proc/pagetypeinfo", &TEXT[..end])]);
            assert!(system.page_types().is_err(), "cut at {end}");
        }
    }
}
