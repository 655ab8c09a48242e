//! Mappings: what a range of addresses is for.

use crate::objects::Backing;

/// Backing of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
pub enum VmaKind {
    /// Zero-filled memory.
    Anonymous,
    /// A file.
    File,
}

/// Advice of the program about huge pages (`madvise`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
pub enum HugeAdvice {
    /// Nothing.
    #[default]
    None,
    /// `MADV_HUGEPAGE`.
    Huge,
    /// `MADV_NOHUGEPAGE`, or `MAP_STACK`.
    NoHuge,
}

/// Mappings of a process without transparent huge pages (`PR_SET_THP_DISABLE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, contigua_state::Plain)]
pub enum Disabled {
    /// None on account of it.
    #[default]
    None,
    /// Those that are not advised to have them.
    ButAdvised,
    /// All.
    All,
}

/// A mapping. Its range is the key that it is kept under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, contigua_state::Plain)]
pub struct Vma {
    /// Backing of the mapping.
    pub kind: VmaKind,
    /// Stores are allowed.
    pub writable: bool,
    /// Stores are seen by every process that maps it: no copy on write.
    pub shared: bool,
    /// Advice about huge pages.
    pub huge: HugeAdvice,
    /// The program asked for pages of `HugeTLB`.
    pub hugetlb: bool,
    /// Object whose pages a shared mapping has. Without one, only children have the pages, too.
    pub backing: Option<Backing>,
}

impl Vma {
    /// Private zero-filled memory that may be written.
    pub const ANONYMOUS: Self = Self {
        kind: VmaKind::Anonymous,
        writable: true,
        shared: false,
        huge: HugeAdvice::None,
        hugetlb: false,
        backing: None,
    };

    /// The mapping as policies see it.
    pub(crate) fn under(self, disabled: Disabled) -> Self {
        let is_disabled = match disabled {
            Disabled::None => false,
            Disabled::ButAdvised => self.huge != HugeAdvice::Huge,
            Disabled::All => true,
        };
        let huge = if is_disabled {
            HugeAdvice::NoHuge
        } else {
            self.huge
        };
        Self { huge, ..self }
    }

    /// The mapping's part at addresses that are a distance further.
    pub(crate) fn moved(self, distance: u64) -> Self {
        Self {
            backing: self.backing.map(|backing| backing.moved(distance)),
            ..self
        }
    }
}
