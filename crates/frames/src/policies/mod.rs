//! Placement policies: which part of memory may serve which request. One file each, listed here.
//!
//! A policy gives verdicts and keeps no state; the allocator acts on them. To add one, write its
//! file with its `Config` and its [`PlacementPolicy`], and add its line to the list below. To try
//! one first, hand it over as [`explored::Explored`].

#[cfg(feature = "alloc")]
pub mod explored;

use contigua_units::Order;

use crate::Request;
use crate::block::MigrateType;
use crate::controller;
use crate::lists::Discipline;

/// A free block of another type than a request's own, which has run out.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Type of the pageblock that it lies in.
    pub kind: MigrateType,
    /// Its order.
    pub order: Order,
    /// Free frames of its pageblock.
    pub free: u32,
    /// Frames of its pageblock in use that can be moved.
    pub movable: u32,
    /// Frames of its pageblock that are in use and stay.
    pub unmovable: u32,
}

/// Verdict on a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Leave it alone.
    Refuse,
    /// Take what is needed from it; the pageblock keeps its type.
    Borrow,
    /// Take what is needed from the smallest block that has it; pageblocks keep their types.
    BorrowSmallest,
    /// Take what is needed, and let the pageblock have the request's type from now on.
    Claim,
}

/// Steps before a movable block may be pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// Nothing: it becomes unmovable where it is.
    InPlace,
    /// It moves into the unmovable region.
    MoveFirst,
}

/// When single movable frames use the unmovable region, until a thread moves them out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shelters {
    /// Not at all.
    Never,
    /// Before the OOM killer runs ([`Request::last_resort`]).
    Last,
    /// When their own has no block.
    Always,
}

/// Two regions with a border between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Confinement {
    /// The unmovable region at the start and at its smallest.
    pub least_unmovable: contigua_units::Bytes,
    /// True if the border stays where it is. Single movable frames then use the unmovable region,
    /// too, beyond what Linux reserves there (`lowmem_reserve_ratio`), and give way when it is short.
    pub is_fixed: bool,
    /// Share of each region next to the border, in percent, that is used last.
    pub window_percent: u32,
    /// True if hardware moves frames in use that are in the border's way.
    pub hardware_migration: bool,
    /// Requests take from the end of the unmovable region that suits their class.
    pub by_type: bool,
    /// When single movable frames may use the unmovable region for a while.
    pub shelters: Shelters,
    /// When idle unmovable memory goes back.
    pub give_back: controller::GiveBack,
    /// When and how much to resize.
    pub resize: controller::Config,
}

/// Superpageblocks: aligned groups of pageblocks, by which requests are steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    /// Pageblocks of a superpageblock.
    pub blocks: u32,
    /// Free pageblocks of a tainted one that movable memory leaves alone, in thousandths of its
    /// pageblocks, rounded up.
    pub reserve_permille: u32,
}

/// Decides where requests are served.
pub trait PlacementPolicy {
    /// The lists that serve a request first.
    #[inline]
    fn home(&self, request: &Request) -> MigrateType {
        natural_type(request)
    }

    /// Types to search when these have no block, in order: Linux's table `fallbacks`.
    fn fallbacks(&self, home: MigrateType) -> &'static [MigrateType] {
        use MigrateType::{Movable, Reclaimable, Unmovable};
        match home {
            Unmovable => &[Reclaimable, Movable],
            Movable => &[Reclaimable, Unmovable],
            Reclaimable => &[Unmovable, Movable],
            MigrateType::HighAtomic | MigrateType::Isolate => &[],
        }
    }

    /// Verdict on a block found there; the largest blocks are shown first.
    fn verdict(&self, home: MigrateType, request: &Request, candidate: &Candidate) -> Verdict;

    /// Choice among several blocks.
    fn discipline(&self) -> Discipline {
        Discipline::Recency
    }

    /// The regions of so much memory, if there are any.
    fn confinement(&self, memory: contigua_units::Bytes) -> Option<Confinement> {
        let _ = memory;
        None
    }

    /// Steps before a block is pinned.
    fn pinning(&self) -> Pinning {
        Pinning::InPlace
    }

    /// True if whole pageblocks are made before types mix: the kernel's threads work until the high
    /// watermark is free in whole pageblocks.
    fn defragments(&self) -> bool {
        false
    }

    /// True if a request for which reclaim and compaction found no block asks once more, as
    /// [`Request::last_resort`].
    fn has_last_resort(&self) -> bool {
        false
    }

    /// The superpageblocks, if there are any.
    fn steering(&self) -> Option<Steering> {
        None
    }
}

/// The type of a request by what it is for, where a policy has no other opinion.
#[must_use]
pub fn natural_type(request: &Request) -> MigrateType {
    use contigua_contiguity::FrameKind;
    match request.class.kind() {
        FrameKind::Movable => MigrateType::Movable,
        _ if request.reclaimable => MigrateType::Reclaimable,
        _ => MigrateType::Unmovable,
    }
}

/// Makes the modules, the configuration enum, its access to the policy and the list of names.
macro_rules! policies {
    ($($(#[$doc:meta])* $module:ident: $variant:ident, $name:literal;)*) => {
        $(pub mod $module;)*

        /// Placement policy and its parameters: the table `[placement.NAME]` of a design.
        #[derive(Clone, Debug, PartialEq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum Placement {
            $($(#[$doc])* #[cfg_attr(feature = "serde", serde(rename = $name))]
            $variant($module::Config),)*
            /// One that is given at run time; no file can name it.
            #[cfg(feature = "alloc")]
            #[cfg_attr(feature = "serde", serde(rename = "explored", skip_deserializing))]
            #[cfg_attr(feature = "schema", schemars(skip))]
            Explored(explored::Explored),
        }

        impl Placement {
            /// Names of all policies that designs can name.
            pub const NAMES: &[&str] = &[$($name,)*];

            /// Its name.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                    #[cfg(feature = "alloc")]
                    Self::Explored(_) => "explored",
                }
            }
        }

        impl PlacementPolicy for Placement {
            #[inline]
            fn home(&self, request: &Request) -> MigrateType {
                match self {
                    $(Self::$variant(policy) => policy.home(request),)*
                    #[cfg(feature = "alloc")]
                    Self::Explored(explored) => explored.policy().home(request),
                }
            }

            fn fallbacks(&self, home: MigrateType) -> &'static [MigrateType] {
                match self {
                    $(Self::$variant(policy) => policy.fallbacks(home),)*
                    #[cfg(feature = "alloc")]
                    Self::Explored(explored) => explored.policy().fallbacks(home),
                }
            }

            fn verdict(
                &self,
                home: MigrateType,
                request: &Request,
                candidate: &Candidate,
            ) -> Verdict {
                match self {
                    $(Self::$variant(policy) => policy.verdict(home, request, candidate),)*
                    #[cfg(feature = "alloc")]
                    Self::Explored(explored) => explored.policy().verdict(home, request, candidate),
                }
            }

            fn discipline(&self) -> Discipline {
                match self {
                    $(Self::$variant(policy) => policy.discipline(),)*
                    #[cfg(feature = "alloc")]
                    Self::Explored(explored) => explored.policy().discipline(),
                }
            }

            fn confinement(&self, memory: contigua_units::Bytes) -> Option<Confinement> {
                match self {
                    $(Self::$variant(policy) => policy.confinement(memory),)*
                    #[cfg(feature = "alloc")]
                    Self::Explored(explored) => explored.policy().confinement(memory),
                }
            }

            fn pinning(&self) -> Pinning {
                match self {
                    $(Self::$variant(policy) => policy.pinning(),)*
                    #[cfg(feature = "alloc")]
                    Self::Explored(explored) => explored.policy().pinning(),
                }
            }

            #[inline]
            fn defragments(&self) -> bool {
                match self {
                    $(Self::$variant(policy) => policy.defragments(),)*
                    #[cfg(feature = "alloc")]
                    Self::Explored(explored) => explored.policy().defragments(),
                }
            }

            fn has_last_resort(&self) -> bool {
                match self {
                    $(Self::$variant(policy) => policy.has_last_resort(),)*
                    #[cfg(feature = "alloc")]
                    Self::Explored(explored) => explored.policy().has_last_resort(),
                }
            }

            fn steering(&self) -> Option<Steering> {
                match self {
                    $(Self::$variant(policy) => policy.steering(),)*
                    #[cfg(feature = "alloc")]
                    Self::Explored(explored) => explored.policy().steering(),
                }
            }
        }
    };
}

policies! {
    /// Linux.
    linux: Linux, "linux";
    /// Illuminator: no mixing inside a pageblock.
    illuminator: Illuminator, "illuminator";
    /// Linux with `vm.defrag_mode`: types mix as a last resort.
    defrag_mode: DefragMode, "defrag-mode";
    /// Superpageblocks: unmovable memory packs into tainted gigabytes.
    superpageblocks: Superpageblocks, "superpageblocks";
    /// Contiguitas: two regions.
    contiguitas: Contiguitas, "contiguitas";
    /// Linux's `ZONE_MOVABLE`: a border that stays.
    zone_movable: ZoneMovable, "zone-movable";
}

impl Default for Placement {
    fn default() -> Self {
        Self::Linux(linux::Config::default())
    }
}
