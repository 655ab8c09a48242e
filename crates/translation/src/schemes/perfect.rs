//! A perfect TLB: every translation is known at once, and no walk touches a cache.
//!
//! No hardware can be built like this. It is what translation is measured against: the cycles that a
//! design takes beyond those of the perfect TLB with the same pages are what its translation costs.

use contigua_paging::{MappingPolicy, SpaceId};
use contigua_units::{Cycles, PhysAddr, VirtRange};
use serde::{Deserialize, Serialize};

use super::{BackgroundPass, Scheme, base, thp};
use crate::radix::page;
use crate::{
    Error, Hardware, MemoryPort, Radix, Request, Tables, Translation, Translator,
    TranslatorCounters,
};

/// Pages that the kernel uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "perfect")]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Transparent huge pages, as Linux has them; 4 KB pages only where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thp: Option<thp::Config>,
}

impl Config {
    fn kernel(&self) -> &dyn Scheme {
        match &self.thp {
            Some(thp) => thp,
            None => &base::Config {},
        }
    }
}

impl Scheme for Config {
    fn translator(&self, hardware: &Hardware<'_>) -> Result<Box<dyn Translator>, Error> {
        Ok(Box::new(Perfect {
            radix: Radix::new(hardware)?,
        }))
    }

    fn policy(&self) -> Box<dyn MappingPolicy> {
        self.kernel().policy()
    }

    fn background(&self) -> Option<BackgroundPass> {
        self.kernel().background()
    }
}

/// Walks take no time and leave no trace.
#[derive(contigua_state::State)]
struct Perfect {
    radix: Radix,
}

struct NoTime;

impl MemoryPort for NoTime {
    fn reference(&mut self, _: PhysAddr) -> Cycles {
        Cycles::ZERO
    }
}

impl Translator for Perfect {
    fn translate(
        &mut self,
        request: &Request,
        tables: &mut Tables<'_>,
        _: &mut dyn MemoryPort,
    ) -> Translation {
        match self.radix.walk(request, tables, &mut NoTime) {
            Ok((leaf, _)) => page(leaf, Cycles::ZERO, false),
            Err(Translation::Fault { host, .. }) => Translation::Fault {
                latency: Cycles::ZERO,
                host,
            },
            Err(found) => found,
        }
    }

    fn invalidate(&mut self, space: SpaceId, range: VirtRange) {
        self.radix.invalidate(space, range);
    }

    fn flush(&mut self) {
        self.radix.flush();
    }

    fn counters(&self) -> TranslatorCounters {
        TranslatorCounters::default()
    }

    fn reset_counters(&mut self) {
        self.radix.reset_counters();
    }

    fn storage_bits(&self) -> u64 {
        0
    }
}
