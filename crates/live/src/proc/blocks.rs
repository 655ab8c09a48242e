//! `/sys/devices/system/memory`: the blocks in which memory goes online and offline.

use std::fs;

use contigua_units::PAGE_BYTES;

use super::{FrameRange, System};
use crate::Error;

const FOLDER: &str = "sys/devices/system/memory";

/// State of a memory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum BlockState {
    /// The allocator has it.
    Online,
    /// Free.
    Offline,
    /// The kernel is emptying it.
    GoingOffline,
}

/// A block of memory.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryBlock {
    /// Its number: `memory12` is block 12, which begins at 12 times the size of blocks.
    pub number: u64,
    /// State of the block.
    pub state: BlockState,
    /// The zone that it is in, or those it could be onlined to, the default first; empty where the
    /// kernel says `none` or nothing (a block that spans zones).
    pub zones: Vec<String>,
    /// The memory node, where the kernel says it.
    pub node: Option<u32>,
}

/// The blocks of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryBlocks {
    /// Frames of 4 KB in each.
    pub frames: u64,
    /// All of them, by number.
    pub blocks: Vec<MemoryBlock>,
}

impl MemoryBlocks {
    /// The frames of a block.
    #[must_use]
    pub const fn range(&self, number: u64) -> FrameRange {
        let start = number.saturating_mul(self.frames);
        FrameRange {
            start,
            end: start.saturating_add(self.frames),
        }
    }
}

impl System {
    /// The memory blocks. Kernels without memory hot-plug have none: that is an error of a file
    /// that is absent ([`Error::is_absent`]).
    ///
    /// A block that vanishes while it is looked at is passed over.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Parse`].
    pub fn memory_blocks(&self) -> Result<MemoryBlocks, Error> {
        let text = self.text(&format!("{FOLDER}/block_size_bytes"))?;
        let line = text.lines().next();
        let line = line.ok_or_else(|| text.ends_without("a size in hexadecimal"))?;
        let bytes = u64::from_str_radix(line.text.trim(), 16).unwrap_or(0);
        if bytes < PAGE_BYTES || !bytes.is_power_of_two() {
            return Err(line.expected("a size in hexadecimal, a power of two"));
        }
        let path = self.path(FOLDER);
        let unreadable = |error| Error::Read {
            path: path.clone(),
            error,
        };
        let mut blocks = Vec::new();
        for entry in fs::read_dir(&path).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name();
            let number = name
                .to_str()
                .and_then(|name| name.strip_prefix("memory")?.parse().ok());
            if let Some(number) = number
                && let Some(block) = self.memory_block(number)?
            {
                blocks.push(block);
            }
        }
        blocks.sort_unstable_by_key(|block| block.number);
        Ok(MemoryBlocks {
            frames: bytes / PAGE_BYTES,
            blocks,
        })
    }

    /// One block; `None` where it is not, or no more.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Parse`].
    pub fn memory_block(&self, number: u64) -> Result<Option<MemoryBlock>, Error> {
        let folder = format!("{FOLDER}/memory{number}");
        let text = match self.text(&format!("{folder}/state")) {
            Err(error) if error.is_absent() => return Ok(None),
            text => text?,
        };
        let state = match text.as_str().trim() {
            "online" => BlockState::Online,
            "offline" => BlockState::Offline,
            "going-offline" => BlockState::GoingOffline,
            _ => {
                return Err(match text.lines().next() {
                    Some(line) => line.expected("online, offline or going-offline"),
                    None => text.ends_without("online, offline or going-offline"),
                });
            }
        };
        let zones = match self.text(&format!("{folder}/valid_zones")) {
            Ok(text) => text
                .as_str()
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
            Err(_) => Vec::new(),
        };
        Ok(Some(MemoryBlock {
            number,
            state,
            zones: if zones == ["none"] { Vec::new() } else { zones },
            node: self.node_of_block(&folder),
        }))
    }

    fn node_of_block(&self, folder: &str) -> Option<u32> {
        let entries = fs::read_dir(self.path(folder)).ok()?;
        entries.flatten().find_map(|entry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix("node")?.parse().ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::machine;
    use super::*;

    #[test]
    fn blocks_have_states_zones_and_frames() {
        let (_folder, system) = machine(&[
            ("sys/devices/system/memory/block_size_bytes", "8000000\n"),
            ("sys/devices/system/memory/memory32/state", "offline\n"),
            (
                "sys/devices/system/memory/memory32/valid_zones",
                "Normal Movable\n",
            ),
            ("sys/devices/system/memory/memory32/node1/meminfo", ""),
            ("sys/devices/system/memory/memory0/state", "online\n"),
            ("sys/devices/system/memory/memory0/valid_zones", "none\n"),
            ("sys/devices/system/memory/memory7/removable", "1\n"),
            ("sys/devices/system/memory/probe", ""),
        ]);
        let blocks = system.memory_blocks().unwrap();
        assert_eq!(blocks.frames, 32_768);
        assert_eq!(blocks.blocks.len(), 2);
        assert_eq!(blocks.blocks[0].state, BlockState::Online);
        assert!(blocks.blocks[0].zones.is_empty());
        let last = &blocks.blocks[1];
        assert_eq!((last.number, last.state), (32, BlockState::Offline));
        assert_eq!((last.node, last.zones.len()), (Some(1), 2));
        assert_eq!(blocks.range(32).start, 1 << 20);
    }

    #[test]
    fn a_machine_without_blocks_says_so() {
        let (_folder, system) = machine(&[("proc/meminfo", "")]);
        assert!(system.memory_blocks().unwrap_err().is_absent());
        let (_folder, system) = machine(&[("sys/devices/system/memory/block_size_bytes", "7\n")]);
        assert!(system.memory_blocks().is_err());
    }
}
