//! The state file: where blocks were before the guard moved them, and the move that is under way.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::machine::Place;

/// The version of the format.
pub const VERSION: u32 = 1;

/// A move that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// The block.
    pub block: u64,
    /// Its place before the move.
    pub from: Place,
    /// Its target.
    pub to: Place,
}

/// State of the guard that survives a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The version of the format.
    pub version: u32,
    /// The boot that it belongs to: with the next, all blocks are where the kernel puts them.
    pub boot: String,
    /// Blocks that are not where they were, and where that was.
    pub originals: BTreeMap<u64, Place>,
    /// The move that is under way.
    pub intent: Option<Intent>,
    /// Moves done since boot.
    pub moves: u64,
    /// Moves since boot that did not work and were undone.
    pub undone: u64,
}

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StateError {
    /// It is of another version.
    #[error(
        "it has version {found}, and this program knows {VERSION}; release with the program that wrote \
         it, or remove it after a reboot"
    )]
    Version {
        /// The version in the file.
        found: u64,
    },
    /// It is no state file, or is damaged.
    #[error(
        "it is not a state file ({0}); it is replaced whole or not at all, so something else wrote \
         it: remove it after a reboot, which restores the layout"
    )]
    Malformed(String),
}

impl State {
    /// A machine before any change.
    #[must_use]
    pub fn new(boot: String) -> Self {
        Self {
            version: VERSION,
            boot,
            ..Self::default()
        }
    }

    /// Reads the text of a file. A state of an earlier boot is void.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn read(text: &str, boot: &str) -> Result<Self, StateError> {
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| StateError::Malformed(error.to_string()))?;
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(found) if found == u64::from(VERSION) => {}
            Some(found) => return Err(StateError::Version { found }),
            None => return Err(StateError::Malformed("no version".to_owned())),
        }
        let state: Self = serde_json::from_value(value)
            .map_err(|error| StateError::Malformed(error.to_string()))?;
        if state.boot == boot {
            Ok(state)
        } else {
            Ok(Self::new(boot.to_owned()))
        }
    }

    /// The text of the file.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Notes that a block has arrived somewhere.
    pub fn arrived(&mut self, intent: Intent) {
        self.moves += 1;
        let original = *self.originals.entry(intent.block).or_insert(intent.from);
        if original == intent.to {
            self.originals.remove(&intent.block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_is_back_is_forgotten() {
        let mut state = State::new("b".to_owned());
        let there = Intent {
            block: 7,
            from: Place::Movable,
            to: Place::Kernel,
        };
        state.arrived(there);
        assert_eq!(state.originals[&7], Place::Movable);
        state.arrived(Intent {
            from: Place::Kernel,
            to: Place::Movable,
            ..there
        });
        assert!(state.originals.is_empty());
        assert_eq!(State::read(&state.text(), "b").unwrap(), state);
    }

    #[test]
    fn other_boots_versions_and_files_are_told_apart() {
        let mut state = State::new("before".to_owned());
        state.moves = 3;
        let text = state.text();
        assert_eq!(
            State::read(&text, "after").unwrap(),
            State::new("after".to_owned())
        );
        let newer = text.replace("\"version\": 1", "\"version\": 2");
        let error = State::read(&newer, "before").unwrap_err();
        assert_eq!(error, StateError::Version { found: 2 });
        for end in 0..text.len() - 2 {
            let error = State::read(&text[..end], "before").unwrap_err();
            assert!(matches!(error, StateError::Malformed(_)), "{end}");
        }
        let unknown = text.replace("\"moves\"", "\"motions\"");
        assert!(State::read(&unknown, "before").is_err());
    }
}
