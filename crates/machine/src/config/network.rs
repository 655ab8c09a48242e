//! The device that connects a server with its clients.

use contigua_units::{Cycles, Megahertz, Nanoseconds};
use serde::{Deserialize, Serialize};

/// The network device of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkConfig {
    /// Gigabits that its link has a second, in each direction.
    #[schemars(range(min = 1, max = 1600))]
    pub gigabits_per_second: u32,
    /// Time from the ringing of its queue until it has read the descriptor.
    #[schemars(extend("x-minimum" = "0ns", "x-maximum" = "1s"))]
    pub latency: Nanoseconds,
}

impl Default for NetworkConfig {
    /// 100 Gb/s is our choice: at 25, nginx on four cores waits for its link. The device reads a descriptor by a message to memory and back, about 900 ns
    /// (Neugebauer et al., SIGCOMM 2018, section 6.1).
    fn default() -> Self {
        Self {
            gigabits_per_second: 100,
            latency: Nanoseconds::new(900),
        }
    }
}

impl NetworkConfig {
    /// Time that so many bytes take on the link, at least a cycle.
    #[must_use]
    pub fn time(&self, bytes: u64, clock: Megahertz) -> Cycles {
        let bits = 8 * bytes * u64::from(clock.get());
        Cycles::new((bits / (1000 * u64::from(self.gigabits_per_second))).max(1))
    }
}
