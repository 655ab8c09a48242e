//! The translation designs that can be compared: one file each, listed here.
//!
//! A scheme's file holds its configuration with defaults, its hardware half (a [`Translator`])
//! and, where the operating system takes part, its mapping half (a [`MappingPolicy`]). To add one,
//! write its file and add its line to the list below.

use contigua_paging::MappingPolicy;
use contigua_units::Nanoseconds;
use serde::{Deserialize, Serialize};

use crate::{Error, TlbConfig, Translator, WalkCacheConfig};

/// How often the kernel's background pass runs, and how far it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundPass {
    /// Time from one step to the next.
    pub interval: Nanoseconds,
    /// 4 KB pages looked at in a step.
    pub pages: u64,
}

/// What a scheme's `Config` provides.
trait Scheme {
    /// The hardware half.
    fn translator(
        &self,
        tlb: &TlbConfig,
        walk_cache: &WalkCacheConfig,
    ) -> Result<Box<dyn Translator>, Error>;

    /// The mapping half.
    fn policy(&self) -> Box<dyn MappingPolicy>;

    /// The background pass that the mapping half asks for.
    fn background(&self) -> Option<BackgroundPass> {
        None
    }
}

/// Makes the modules, the configuration enum, its constructors and the list of names.
macro_rules! schemes {
    ($($(#[$doc:meta])* $module:ident: $variant:ident, $name:literal;)*) => {
        $(pub mod $module;)*

        /// Which scheme, and its parameters: the table `[translation.NAME]` of a design.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub enum SchemeConfig {
            $($(#[$doc])* #[serde(rename = $name)] $variant($module::Config),)*
        }

        impl SchemeConfig {
            /// Names of all schemes.
            pub const NAMES: &[&str] = &[$($name,)*];

            fn scheme(&self) -> &dyn Scheme {
                match self {
                    $(Self::$variant(config) => config,)*
                }
            }
        }
    };
}

schemes! {
    /// 4 KB pages only.
    base: Base, "base";
    /// Transparent huge pages.
    thp: Thp, "thp";
}

impl SchemeConfig {
    /// The hardware half.
    ///
    /// # Errors
    /// [`Error`], when a geometry is impossible.
    pub fn translator(
        &self,
        tlb: &TlbConfig,
        walk_cache: &WalkCacheConfig,
    ) -> Result<Box<dyn Translator>, Error> {
        self.scheme().translator(tlb, walk_cache)
    }

    /// The mapping half.
    #[must_use]
    pub fn policy(&self) -> Box<dyn MappingPolicy> {
        self.scheme().policy()
    }

    /// The background pass that the mapping half asks for.
    #[must_use]
    pub fn background(&self) -> Option<BackgroundPass> {
        self.scheme().background()
    }
}
