//! Reports of the guard's decisions and moves.

use std::fmt;
use std::time::Duration;

use contigua_units::Bytes;

use super::machine::Place;
use super::plan::{Refusal, mib};
use super::state::Intent;

/// Why the border should move: the figures behind a decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reason {
    /// The node.
    pub node: u32,
    /// The region that needs memory.
    pub short: Place,
    /// Its available memory.
    pub available: Bytes,
    /// Its low watermark and the reserve.
    pub low: Bytes,
    /// Its pressure in percent of time.
    pub pressure: f64,
    /// Amount that the controller wants to move.
    pub amount: Bytes,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.available < self.low {
            "below"
        } else {
            "above"
        };
        write!(
            f,
            "node {}: {} available in {}, {sign} the {} of its low watermark and the reserve, and \
             tasks waited {:.1} % of the time for it; it should grow by {}",
            self.node,
            mib(self.available),
            self.short,
            mib(self.low),
            self.pressure,
            mib(self.amount)
        )
    }
}

/// Action of the guard, or its refusal; displayed as a sentence with the values.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// The controller wants the border to move.
    Wants(Reason),
    /// A block was moved.
    Moved {
        /// The block, its origin and its target.
        intent: Intent,
        /// Frames in it that were in use.
        used: u64,
    },
    /// A block would be moved, if this were not a dry run.
    Would {
        /// The block, its origin and its target.
        intent: Intent,
        /// Frames in it that are in use.
        used: u64,
    },
    /// A move was refused.
    Refused(Refusal),
    /// The rate limit is reached.
    Limited {
        /// Blocks moved in the last minute.
        blocks: u32,
    },
    /// A block did not move and is where it was.
    GivenUp {
        /// The block, its origin and its target.
        intent: Intent,
        /// Why.
        why: String,
        /// Time until the next attempt.
        backoff: Duration,
    },
    /// A block is offline, or is just going there, and the next look will deal with it.
    Unsettled {
        /// The block, its origin and its target.
        intent: Intent,
        /// Why.
        why: String,
    },
    /// A 1 GB page was made.
    Gigantic {
        /// The node.
        node: u32,
        /// Such pages that it has now.
        pages: u64,
    },
    /// No 1 GB page could be made of a range.
    NotGigantic {
        /// Its first block.
        block: u64,
        /// Why.
        why: String,
    },
    /// A move that was under way when the guard died, or that failed half-way, was settled.
    Recovered {
        /// The block, its origin and its target.
        intent: Intent,
        /// Its place now; `None` if it was unplugged.
        now: Option<Place>,
    },
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wants(reason) => reason.fmt(f),
            Self::Moved { intent, used } => write!(
                f,
                "moved block {} from {} to {}; {used} frames in it were in use",
                intent.block, intent.from, intent.to
            ),
            Self::Would { intent, used } => write!(
                f,
                "dry run: would move block {} from {} to {}; {used} frames in it are in use",
                intent.block, intent.from, intent.to
            ),
            Self::Refused(refusal) => write!(f, "refused: {refusal}"),
            Self::Limited { blocks } => {
                write!(f, "not now: {blocks} blocks were moved in the last minute")
            }
            Self::GivenUp {
                intent,
                why,
                backoff,
            } => write!(
                f,
                "gave up on block {}, which stays in {}: {why}; it is left alone for {} s",
                intent.block,
                intent.from,
                backoff.as_secs()
            ),
            Self::Unsettled { intent, why } => write!(
                f,
                "block {} is between {} and {}: {why}; the next look deals with it",
                intent.block, intent.from, intent.to
            ),
            Self::Gigantic { node, pages } => {
                write!(f, "node {node} has {pages} HugeTLB pages of 1 GB now")
            }
            Self::NotGigantic { block, why } => write!(
                f,
                "the range from block {block} on does not become a page of 1 GB and goes back: {why}"
            ),
            Self::Recovered { intent, now } => {
                write!(
                    f,
                    "settled an unfinished move of block {} from {} to {}: ",
                    intent.block, intent.from, intent.to
                )?;
                match now {
                    Some(place) => write!(f, "it is now in {place}"),
                    None => f.write_str("it is no longer there"),
                }
            }
        }
    }
}
