//! The first lines of a report: the state of each page size, its cause, and what would help.

use contigua_live::classify::Class;
use contigua_live::report::{PolluterReport, Report, SizeReport};
use contigua_units::Order;

use crate::text::{between, count, percent};

/// Share of polluted 2 MB blocks of the median server (Contiguitas, section 2.5).
const MEDIAN_POLLUTED: f64 = 0.34;
/// Share of a size's polluted blocks that a class alone must pollute to be worth advice.
const WORTH_ADVICE: f64 = 0.1;

/// Returns sentences about 2 MB and 1 GB pages, and about what would help.
pub fn sentences(report: &Report) -> Vec<String> {
    let Some(seen) = &report.frames else {
        return vec![format!(
            "2 MB: {} blocks are free by the allocator's lists; what compaction could free, and who \
             pollutes blocks, takes the right to look at frames (root).",
            count(report.listed_blocks(Order::HUGE_2M)),
        )];
    };
    let [of_2m, .., of_1g] = &seen.sizes;
    let polluters = &seen.polluters;
    let mut found = vec![huge(of_2m, polluters), gigantic(of_1g, polluters)];
    found.extend(advice(
        report.thp.enabled.as_deref(),
        of_2m,
        of_1g,
        polluters,
    ));
    found
}

fn huge(of: &SizeReport, owners: &[PolluterReport]) -> String {
    // Frames that may be free on a CPU's list are gone with the next drain.
    let part = share(of.unmovable_blocks.possible, of.blocks);
    let state = match (of.potential_blocks.possible, part < MEDIAN_POLLUTED) {
        (0, _) => "none can be made",
        (_, true) => "healthy",
        (_, false) => "polluted",
    };
    let potential = of.potential_share_of_memory;
    let free = between(
        &count(of.free_blocks.certain.into()),
        &count(of.free_blocks.possible.into()),
    );
    let mut text = format!(
        "2 MB: {state}. {free} blocks are free; compaction could bring {} of memory into whole blocks",
        between(&percent(potential.certain), &percent(potential.possible)),
    );
    text += &polluted(of, owners, |of| Some(of.blocks_2m));
    text
}

fn gigantic(of: &SizeReport, owners: &[PolluterReport]) -> String {
    if of.blocks == 0 {
        return "1 GB: memory has no whole range of 1 GB.".to_owned();
    }
    let potential = of.potential_blocks;
    let able = between(
        &count(potential.certain.into()),
        &count(potential.possible.into()),
    );
    let mut text = match (potential.possible, of.free_blocks.certain) {
        (0, _) => "1 GB: none can be made".to_owned(),
        (_, 0) => format!("1 GB: none is free; compaction could free {able}"),
        (_, free) => format!(
            "1 GB: {} free; compaction could free {able}",
            count(free.into())
        ),
    };
    text += &polluted(of, owners, |of| of.blocks_1g);
    text
}

/// Says how many blocks are polluted, and mostly by which class.
fn polluted(
    of: &SizeReport,
    polluters: &[PolluterReport],
    blocks: impl Fn(&PolluterReport) -> Option<u64>,
) -> String {
    let bounds = of.unmovable_blocks;
    if bounds.certain == 0 {
        return format!(". None of {} is polluted.", count(of.blocks.into()));
    }
    let known = polluters.iter();
    let known = known.filter(|of| of.owner != Class::Unexplained.key() && blocks(of) > Some(0));
    let most = known.max_by_key(|of| (blocks(of), of.frames));
    let mostly = most.map_or_else(String::new, |of| format!(", mostly {}", name(&of.owner)));
    format!(
        ". {} of {} hold unmovable pages{mostly}.",
        between(
            &count(bounds.possible.into()),
            &count(bounds.certain.into())
        ),
        count(of.blocks.into()),
    )
}

fn advice(
    thp: Option<&str>,
    huge: &SizeReport,
    gigantic: &SizeReport,
    polluters: &[PolluterReport],
) -> Vec<String> {
    let mut found = Vec::new();
    if thp == Some("never") {
        found.push(
            "Transparent huge pages are off: write madvise to \
             /sys/kernel/mm/transparent_hugepage/enabled."
                .to_owned(),
        );
    }
    if huge.free_blocks.possible < huge.potential_blocks.certain / 2 {
        found.push(
            "Free memory is in pieces: `echo 1 > /proc/sys/vm/compact_memory` compacts it."
                .to_owned(),
        );
    }
    let alone = |class: Class| {
        let mut of = polluters.iter();
        of.find(|of| of.owner == class.key())
            .and_then(|of| of.alone_2m)
            .unwrap_or(0)
    };
    let slab = alone(Class::Slab);
    if slab as f64 > WORTH_ADVICE * f64::from(huge.unmovable_blocks.certain.max(1)) {
        found.push(format!(
            "Slab alone pollutes {} blocks of 2 MB: `echo 2 > /proc/sys/vm/drop_caches` drops unused \
             dentries and inodes, and may free some.",
            count(slab),
        ));
    }
    if gigantic.blocks > 0 && gigantic.potential_blocks.possible == 0 {
        found.push(
            "1 GB pages: reserve them at boot (`hugepagesz=1G hugepages=N`), or confine unmovable \
             memory from the start (`contigua-node guard`)."
                .to_owned(),
        );
    }
    found
}

fn name(owner: &str) -> &str {
    let class = Class::ALL.into_iter().find(|class| class.key() == owner);
    class.map_or(owner, |class| class.name())
}

fn share(part: u32, of: u32) -> f64 {
    f64::from(part) / f64::from(of.max(1))
}

#[cfg(test)]
mod tests {
    use contigua_live::census::Bounds;

    use super::*;

    fn both<T: Copy>(value: T) -> Bounds<T> {
        Bounds {
            certain: value,
            possible: value,
        }
    }

    fn size(bytes: u64, blocks: u32, free: u32, potential: u32, unmovable: u32) -> SizeReport {
        SizeReport {
            block_bytes: bytes,
            blocks,
            free_blocks: both(free),
            free_share_of_free: both(0.0),
            potential_blocks: both(potential),
            potential_share_of_memory: both(f64::from(potential) / f64::from(blocks)),
            unmovable_blocks: both(unmovable),
        }
    }

    fn of_class(class: Class, blocks_2m: u64, alone_2m: u64, blocks_1g: u64) -> PolluterReport {
        PolluterReport {
            owner: class.key().to_owned(),
            frames: blocks_2m,
            blocks_2m,
            alone_2m: Some(alone_2m),
            blocks_1g: Some(blocks_1g),
            alone_1g: Some(0),
        }
    }

    #[test]
    fn a_healthy_server_without_1_gb_pages_says_who_is_in_the_way() {
        let huge_pages = size(2 << 20, 1000, 300, 900, 100);
        let ranges = size(1 << 30, 24, 0, 0, 23);
        let polluters = [
            of_class(Class::Slab, 80, 60, 23),
            of_class(Class::PageTable, 30, 0, 20),
            of_class(Class::Unexplained, 90, 0, 24),
        ];
        assert_eq!(
            huge(&huge_pages, &polluters),
            "2 MB: healthy. 300 blocks are free; compaction could bring 90.0 % of memory into whole \
             blocks. 100 of 1,000 hold unmovable pages, mostly slab."
        );
        assert_eq!(
            gigantic(&ranges, &polluters),
            "1 GB: none can be made. 23 of 24 hold unmovable pages, mostly slab."
        );
        let told = advice(Some("madvise"), &huge_pages, &ranges, &polluters);
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].starts_with("Free memory is in pieces"));
        assert!(told[1].starts_with("Slab alone pollutes 60 blocks"));
        assert!(told[2].starts_with("1 GB pages: reserve them at boot"));
    }

    #[test]
    fn a_clean_server_gets_no_advice() {
        let huge_pages = size(2 << 20, 1000, 950, 1000, 0);
        let ranges = size(1 << 30, 2, 1, 2, 0);
        assert!(huge(&huge_pages, &[]).ends_with("blocks. None of 1,000 is polluted."));
        assert_eq!(
            gigantic(&ranges, &[]),
            "1 GB: 1 free; compaction could free 2. None of 2 is polluted."
        );
        assert!(advice(Some("always"), &huge_pages, &ranges, &[]).is_empty());
        assert_eq!(advice(Some("never"), &huge_pages, &ranges, &[]).len(), 1);
    }

    #[test]
    fn states_follow_polluted_and_potential_blocks() {
        assert!(huge(&size(2 << 20, 100, 0, 60, 34), &[]).starts_with("2 MB: polluted."));
        assert!(huge(&size(2 << 20, 100, 0, 60, 33), &[]).starts_with("2 MB: healthy."));
        assert!(huge(&size(2 << 20, 100, 0, 0, 100), &[]).starts_with("2 MB: none can be made."));
    }
}
