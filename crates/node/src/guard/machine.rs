//! Interface to the machine that the guard observes and changes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use contigua_live::proc::Zone;
use contigua_units::Bytes;
use serde::{Deserialize, Serialize};

/// Location of a block's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In one of the kernel's zones.
    Kernel,
    /// In `ZONE_MOVABLE`.
    Movable,
    /// Offline: not in use.
    Offline,
    /// The kernel is emptying it.
    Leaving,
    /// In more than one zone, with holes, or in a zone that the guard leaves alone (`DMA`,
    /// `Device`): it cannot go offline.
    Fixed,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "the kernel's zones",
            Self::Movable => "Movable",
            Self::Offline => "offline",
            Self::Leaving => "going offline",
            Self::Fixed => "fixed",
        })
    }
}

/// Target state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Take it offline.
    Offline,
    /// Bring it online in a kernel zone.
    Kernel,
    /// Bring it online in `ZONE_MOVABLE`.
    Movable,
}

/// A memory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its number: its first byte is this times the size of blocks.
    pub number: u64,
    /// The memory node.
    pub node: u32,
    /// Location of its memory.
    pub place: Place,
}

/// Frames of a block by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// In use and movable.
    pub movable: u64,
    /// In use by the kernel for certain.
    pub unmovable: u64,
    /// In use by the kernel, or free on the list of one CPU.
    pub unexplained: u64,
    /// Set aside at boot, or no memory.
    pub reserved: u64,
}

/// The machine at one moment.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Since some moment in the past.
    pub at: Duration,
    /// The size of blocks.
    pub block: Bytes,
    /// All blocks, by number.
    pub blocks: Vec<Block>,
    /// All zones, in the kernel's order.
    pub zones: Vec<Zone>,
    /// Share of the last 10 s in which some task waited for memory, in percent (PSI); none where
    /// the kernel does not say.
    pub pressure: Option<f64>,
    /// Allocations meant for kernel zones that had to reclaim by themselves, since boot.
    pub kernel_stalls: u64,
    /// Those meant for `ZONE_MOVABLE`.
    pub movable_stalls: u64,
    /// Free swap.
    pub swap: Bytes,
}

impl Survey {
    /// A block by its number.
    #[must_use]
    pub fn block(&self, number: u64) -> Option<Block> {
        let found = self.blocks.iter().find(|block| block.number == number);
        found.copied()
    }
}

/// Why a block did not change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The kernel says no.
    #[error("the kernel refused: {0}")]
    Refused(String),
    /// It took too long and was interrupted.
    #[error("it was not done within {} s and was interrupted", .0.as_secs_f64())]
    TimedOut(Duration),
    /// It took too long and cannot be interrupted; it may yet happen.
    #[error("it does not react to being interrupted; whoever does it is process {0}")]
    Stuck(u32),
    /// The caller is dead: only models say so.
    #[error("killed")]
    Killed,
}

/// Moments of a move; a guard may die at each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing has happened yet.
    BeforeIntent,
    /// The new state file is written but not yet in its place.
    DuringStore,
    /// The intent is on disk.
    AfterIntent,
    /// The kernel is emptying the block, or bringing it online.
    DuringChange,
    /// The block is offline.
    AfterOffline,
    /// The block is in its new zone.
    AfterOnline,
    /// The move is recorded.
    AfterRecord,
}

/// Error while reading or writing; of [`Machine::survey`] and the state file.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The kernel does not say what is needed.
    #[error(transparent)]
    Look(#[from] contigua_live::Error),
    /// The state file.
    #[error("state file {path}: {problem}")]
    Store {
        /// The file.
        path: String,
        /// The fault, and its remedy.
        problem: String,
    },
    /// The caller is dead: only models say so.
    #[error("killed")]
    Killed,
}

/// A machine whose border can be moved.
pub trait Machine {
    /// Looks at everything.
    ///
    /// # Errors
    /// [`MachineError::Look`].
    fn survey(&mut self) -> Result<Survey, MachineError>;

    /// Looks at the frames of blocks; those that cannot be looked at are not in the answer.
    fn census(&mut self, blocks: &[u64]) -> BTreeMap<u64, Occupancy>;

    /// Changes a block, and gives up after a time.
    ///
    /// # Errors
    /// The block is then where it was, but for [`ChangeError::Stuck`] and [`ChangeError::Killed`].
    fn change(&mut self, block: u64, to: Target, limit: Duration) -> Result<(), ChangeError>;

    /// `HugeTLB` pages of 1 GB that a node has; none where the kernel has no such pages.
    fn gigantic_pages(&mut self, node: u32) -> Option<u64>;

    /// Asks the kernel for so many in all, and returns how many there are then.
    ///
    /// # Errors
    /// The kernel's; having fewer is no error.
    fn set_gigantic_pages(
        &mut self,
        node: u32,
        pages: u64,
        limit: Duration,
    ) -> Result<u64, ChangeError>;

    /// The text of the state file, if there is one.
    ///
    /// # Errors
    /// [`MachineError::Store`].
    fn load(&mut self) -> Result<Option<String>, MachineError>;

    /// Replaces the state file by this text, whole or not at all, and waits until it is on disk.
    ///
    /// # Errors
    /// [`MachineError::Store`].
    fn store(&mut self, text: &str) -> Result<(), MachineError>;

    /// Returns a value that changes with each boot.
    fn boot(&mut self) -> String;

    /// Passes a moment at which models let the guard die.
    ///
    /// # Errors
    /// [`MachineError::Killed`], of models.
    fn step(&mut self, _step: Step) -> Result<(), MachineError> {
        Ok(())
    }
}
