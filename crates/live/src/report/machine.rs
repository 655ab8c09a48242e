//! The machine, and how its huge pages are set.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::proc::System;

/// Identity of a machine, and the time of the report.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Machine {
    /// The name that it has for itself.
    pub host: String,
    /// The kernel's release.
    pub kernel: String,
    /// Since it started, in seconds.
    pub uptime_seconds: f64,
    /// Time of the report, in seconds since 1970.
    pub unix_seconds: u64,
    /// Processors that are online.
    pub processors: usize,
    /// Memory that the kernel manages, in bytes.
    pub memory_bytes: u64,
}

/// Transparent huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThpSettings {
    /// `always`, `madvise` or `never`.
    pub enabled: Option<String>,
    /// When a fault compacts.
    pub defrag: Option<String>,
}

/// A pool of `HugeTLB`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HugePool {
    /// Size of a page.
    pub page_bytes: u64,
    /// Pages in the pool.
    #[serde(rename = "total_pages")]
    pub total: u64,
    /// Free pages.
    #[serde(rename = "free_pages")]
    pub free: u64,
}

pub(super) fn machine(system: &System, memory_bytes: u64) -> Machine {
    let word = |path| system.word(path).unwrap_or_default();
    let processors = system.text("proc/cpuinfo").map_or(0, |text| {
        let lines = text.as_str().lines();
        lines.filter(|line| line.starts_with("processor")).count()
    });
    Machine {
        host: word("proc/sys/kernel/hostname"),
        kernel: word("proc/sys/kernel/osrelease"),
        uptime_seconds: word("proc/uptime").parse().unwrap_or(0.0),
        unix_seconds: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        processors,
        memory_bytes,
    }
}

pub(super) fn thp_settings(system: &System) -> ThpSettings {
    // The choice that holds is in brackets: `always [madvise] never`.
    let chosen = |name: &str| {
        let path = format!("sys/kernel/mm/transparent_hugepage/{name}");
        let text = system.text(&path).ok()?;
        let (_, rest) = text.as_str().split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    };
    ThpSettings {
        enabled: chosen("enabled"),
        defrag: chosen("defrag"),
    }
}

pub(super) fn huge_pools(system: &System) -> Vec<HugePool> {
    let folder = "sys/kernel/mm/hugepages";
    let Ok(entries) = fs::read_dir(system.path(folder)) else {
        return Vec::new();
    };
    let mut pools: Vec<HugePool> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            let number = |file: &str| {
                let word = system.word(&format!("{folder}/{name}/{file}")).ok()?;
                word.parse().ok()
            };
            Some(HugePool {
                page_bytes: size.parse::<u64>().ok()? * 1024,
                total: number("nr_hugepages")?,
                free: number("free_hugepages")?,
            })
        })
        .collect();
    pools.sort_unstable_by_key(|pool| pool.page_bytes);
    pools
}
