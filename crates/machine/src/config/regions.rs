//! Regions of the program that the user names.

use contigua_program::plan::{self, Invalid, Regions, Window, Windows};
use serde::{Deserialize, Serialize};

/// Regions of the program that the user names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[derive(schemars::JsonSchema)]
pub enum RegionConfig {
    /// By counts of instructions.
    Windows {
        /// Instructions that warm caches and TLBs before each.
        warm: u64,
        /// In any order.
        windows: Vec<Window>,
    },
    /// Windows that stand for the whole program (Sherwood et al., "`SimPoint`", ASPLOS 2002).
    SimPoints {
        /// Instructions that warm caches and TLBs before each.
        warm: u64,
        /// In any order.
        points: Vec<Point>,
    },
    /// From a marker in the program's code to another one.
    Markers {
        /// Caches and TLBs are kept warm outside.
        keep_warm: bool,
    },
    /// While a client loads the server.
    Client {
        /// Caches and TLBs are kept warm outside.
        keep_warm: bool,
    },
    /// Calls of a function.
    Function {
        /// Its name, as the user gave it.
        name: String,
        /// Caches and TLBs are kept warm outside.
        keep_warm: bool,
    },
}

/// A window, and the share of the program that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Point {
    /// The window.
    #[serde(flatten)]
    pub window: Window,
    /// The share, 0 to 1.
    pub weight: f64,
}

impl RegionConfig {
    /// The function whose calls they are.
    #[must_use]
    pub fn function(&self) -> Option<&str> {
        match self {
            Self::Function { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Plan of regions that both sides of a run follow. The address of a function is found with the
    /// program.
    ///
    /// # Errors
    /// [`Invalid`], for windows that cannot be.
    pub fn regions(&self) -> Result<Regions, Invalid> {
        let outside = |keep_warm: bool| {
            if keep_warm {
                plan::Mode::Warm
            } else {
                plan::Mode::Forward
            }
        };
        Ok(match self {
            Self::Windows { warm, windows } => {
                Regions::Windows(Windows::new(*warm, windows.clone())?)
            }
            Self::SimPoints { warm, points } => {
                let windows = points.iter().map(|point| point.window);
                Regions::Windows(Windows::new(*warm, windows.collect())?)
            }
            Self::Markers { keep_warm }
            | Self::Client { keep_warm }
            | Self::Function { keep_warm, .. } => Regions::Cued {
                outside: outside(*keep_warm),
                function: None,
            },
        })
    }

    /// Returns true if the program, or its client, begins and ends them.
    #[must_use]
    pub const fn is_cued(&self) -> bool {
        matches!(
            self,
            Self::Markers { .. } | Self::Client { .. } | Self::Function { .. }
        )
    }

    /// The shares of points, in the program's order; none for other regions.
    #[must_use]
    pub fn weights(&self) -> Vec<f64> {
        let Self::SimPoints { points, .. } = self else {
            return Vec::new();
        };
        let mut points = points.clone();
        points.sort_by_key(|point| point.window.begin);
        points.iter().map(|point| point.weight).collect()
    }
}
