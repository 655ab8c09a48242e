//! Settings of an operator, from a TOML file or flags.

use std::path::Path;

use anyhow::Context;
use contigua_frames::controller;
use contigua_input::{MAX_CONFIG_BYTES, read_text};
use contigua_units::{Bytes, Nanoseconds};
use serde::{Deserialize, Serialize};

/// Treatment of blocks that are offline and that the guard did not take offline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OnlineNew {
    /// Nothing.
    #[default]
    Leave,
    /// Bring them online as movable: memory that is plugged in.
    Movable,
}

/// The settings. Every key has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Time between two looks at the machine.
    pub interval: Nanoseconds,
    /// Free memory to keep in each region of a node above the kernel's low watermark; twice as much
    /// above its high one is the goal. By default half a block, so that a whole one is in store.
    pub reserve: Option<Bytes>,
    /// The kernel zones of a node never become smaller than this. By default a tenth of its memory.
    pub kernel_min: Option<Bytes>,
    /// The movable zone of a node never becomes smaller than this. By default a block.
    pub movable_min: Option<Bytes>,
    /// Time after which a block that does not go offline, or online, is given up.
    pub limit: Nanoseconds,
    /// The most blocks that are moved in a minute.
    pub blocks_per_minute: u32,
    /// Time for which a block that did not go offline is left alone; doubles each time.
    pub retry_after: Nanoseconds,
    /// Treatment of blocks that are offline and that the guard did not take offline.
    pub online_new: OnlineNew,
    /// When to move the border and how far; the simulator's controller has the same parameters.
    pub controller: controller::Config,
}

const SECOND: u64 = 1_000_000_000;

impl Default for Config {
    fn default() -> Self {
        Self {
            interval: Nanoseconds::new(SECOND),
            reserve: None,
            kernel_min: None,
            movable_min: None,
            limit: Nanoseconds::new(10 * SECOND),
            blocks_per_minute: 20,
            retry_after: Nanoseconds::new(60 * SECOND),
            online_new: OnlineNew::Leave,
            controller: controller::Config::default(),
        }
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// The fault, and its line.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = read_text(path, MAX_CONFIG_BYTES)
            .with_context(|| format!("configuration {}", path.display()))?;
        let config: Self =
            toml::from_str(&text).with_context(|| format!("configuration {}", path.display()))?;
        config
            .check()
            .with_context(|| format!("configuration {}", path.display()))?;
        Ok(config)
    }

    /// Checks that the values make sense together.
    ///
    /// # Errors
    /// The one that does not.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.interval.get() >= SECOND / 20,
            "interval is {}; the least is 50ms, and PSI's averages change every 2 s",
            self.interval
        );
        anyhow::ensure!(
            self.limit.get() >= SECOND / 10,
            "limit is {}; a block needs 100ms at least",
            self.limit
        );
        anyhow::ensure!(
            self.blocks_per_minute > 0,
            "blocks_per_minute is 0, so that nothing would ever move; use --dry-run to look on"
        );
        let controller = &self.controller;
        for (name, value) in [
            ("unmovable_threshold", controller.unmovable_threshold),
            ("movable_threshold", controller.movable_threshold),
            ("growth_gain", controller.growth_gain),
            ("shrink_gain", controller.shrink_gain),
            ("largest_step_percent", controller.largest_step_percent),
        ] {
            anyhow::ensure!(
                value.is_finite() && value >= 0.0,
                "controller.{name} is {value}; it must be a number from 0 on"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<Config> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Config::read(file.path())
    }

    #[test]
    fn keys_have_defaults_and_units() {
        assert_eq!(read("").unwrap(), Config::default());
        let text = "interval = '500ms'\nreserve = '64MiB'\nonline_new = 'movable'\n\
                    [controller]\ncooldown = '5s'\n";
        let config = read(text).unwrap();
        assert_eq!(config.reserve, Some(Bytes::new(64 << 20)));
        assert_eq!(config.online_new, OnlineNew::Movable);
        assert_eq!(config.controller.cooldown.get(), 5 * SECOND);
    }

    #[test]
    fn errors_name_the_key() {
        for (text, said) in [
            ("intervall = '1s'", "intervall"),
            ("interval = '1 parsec'", "unknown unit"),
            ("interval = '1ms'", "least is 50ms"),
            ("blocks_per_minute = 0", "--dry-run"),
            ("[controller]\ngrowth_gain = -1.0", "controller.growth_gain"),
        ] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
