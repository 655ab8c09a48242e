//! Is the migration protocol right? Every state of a small machine is visited, with the code that
//! the simulated hardware and operating system run.
//!
//! `make check-protocol` takes the larger machines and prints states and counter-examples.

mod model;
mod packing;
mod rules;
mod search;
mod words;

use std::time::Instant;

use contigua_cache::migration::{Mode, SwitchOrder};
use model::{Configuration, Holders, Model};
use rules::Rules;
use search::{Ending, Outcome, search, search_for_a_dead_end};

/// Of all machines.
const MAX_CORES: usize = 3;
/// Lines of all pages.
const MAX_LINES: usize = 4;
const MAX_PAGES: usize = 2;

/// 29 bytes each, and as much again while an array grows.
const MAX_STATES: usize = 150_000_000;

const ONE_CORE: Configuration = Configuration {
    cores: 1,
    pages: 1,
    entries: 1,
    lines: 1,
    device: false,
    order: SwitchOrder::CopyThenSwitch,
    mode: Mode::Cacheable,
    rules: Rules::ALL,
    requests_travel: true,
    invalidation_stops_walks: true,
    drains_reported: true,
    holders: Holders::All,
    reuse: true,
    every_agent_invalidates: true,
    forbid_double_alias: true,
    contents: true,
};
const DEVICE: Configuration = Configuration {
    cores: 0,
    device: true,
    ..ONE_CORE
};
const CORE_AND_DEVICE: Configuration = Configuration {
    device: true,
    ..ONE_CORE
};
const TWO_CORES: Configuration = Configuration {
    cores: 2,
    ..ONE_CORE
};
const TWO_CORES_AND_DEVICE: Configuration = Configuration {
    device: true,
    ..TWO_CORES
};
const TWO_LINES: Configuration = Configuration {
    lines: 2,
    ..ONE_CORE
};

/// Two pages migrate at a time.
const TWO_ENTRIES: Configuration = Configuration {
    pages: 2,
    entries: 2,
    requests_travel: false,
    ..ONE_CORE
};
const TWO_ENTRIES_OF_A_DEVICE: Configuration = Configuration {
    cores: 0,
    device: true,
    requests_travel: true,
    ..TWO_ENTRIES
};
/// The second of two pages is refused until the first has arrived.
const FULL_TABLE: Configuration = Configuration {
    entries: 1,
    ..TWO_ENTRIES
};

/// All that the larger machines have, without contents.
const EVERYTHING: Configuration = Configuration {
    cores: 3,
    device: true,
    pages: 2,
    entries: 2,
    lines: 2,
    reuse: false,
    contents: false,
    ..ONE_CORE
};

/// Machines that a test of a minute can take.
const MACHINES: [Configuration; 11] = [
    ONE_CORE,
    DEVICE,
    CORE_AND_DEVICE,
    TWO_CORES,
    TWO_LINES,
    Configuration {
        holders: Holders::AfterSwitch,
        ..CORE_AND_DEVICE
    },
    Configuration {
        cores: 3,
        requests_travel: false,
        ..ONE_CORE
    },
    Configuration {
        cores: 2,
        requests_travel: false,
        ..TWO_LINES
    },
    TWO_CORES_AND_DEVICE,
    TWO_ENTRIES_OF_A_DEVICE,
    FULL_TABLE,
];

/// Machines that take minutes.
const LARGE_MACHINES: [Configuration; 8] = [
    TWO_ENTRIES,
    Configuration {
        requests_travel: true,
        ..TWO_ENTRIES
    },
    Configuration {
        cores: 3,
        ..ONE_CORE
    },
    Configuration {
        device: true,
        ..TWO_LINES
    },
    Configuration {
        cores: 2,
        ..TWO_LINES
    },
    Configuration {
        cores: 2,
        device: true,
        requests_travel: false,
        ..TWO_LINES
    },
    Configuration {
        cores: 3,
        requests_travel: false,
        ..TWO_LINES
    },
    Configuration {
        cores: 3,
        ..CORE_AND_DEVICE
    },
];

/// Both orders, both modes.
fn designs(machine: Configuration) -> [Configuration; 4] {
    use Mode::{Cacheable, Noncacheable};
    use SwitchOrder::{CopyThenSwitch, SwitchThenCopy};
    [
        (CopyThenSwitch, Cacheable),
        (CopyThenSwitch, Noncacheable),
        (SwitchThenCopy, Cacheable),
        (SwitchThenCopy, Noncacheable),
    ]
    .map(|(order, mode)| Configuration {
        order,
        mode,
        ..machine
    })
}

/// Visits all states and prints how many; none may be bad.
fn expect_no_bad_state(configuration: Configuration) {
    let start = Instant::now();
    let mut model = Model::new(configuration);
    match search(&mut model, MAX_STATES) {
        Outcome::Holds { states, depth } => println!(
            "{configuration}: {states} states, {} of table and system, depth {depth}, {:.1} s",
            model.controls(),
            start.elapsed().as_secs_f64()
        ),
        Outcome::Refuted { steps, .. } => panic!("{configuration}:\n  {}", steps.join("\n  ")),
        Outcome::TooManyStates => panic!("{configuration}: too many states"),
    }
}

#[test]
fn no_bad_state_can_be_reached() {
    for machine in MACHINES {
        designs(machine).into_iter().for_each(expect_no_bad_state);
    }
}

#[test]
#[ignore = "minutes: make check-protocol"]
fn no_bad_state_can_be_reached_on_larger_machines() {
    for machine in LARGE_MACHINES {
        designs(machine).into_iter().for_each(expect_no_bad_state);
    }
}

fn expect_every_migration_to_end(machines: &[Configuration]) {
    for configuration in machines.iter().copied().flat_map(designs) {
        let start = Instant::now();
        match search_for_a_dead_end(&mut Model::new(configuration), MAX_STATES) {
            Ending::Always { states } => println!(
                "{configuration}: every migration ends from {states} states, {:.1} s",
                start.elapsed().as_secs_f64()
            ),
            Ending::Never { steps } => panic!("{configuration}:\n  {}", steps.join("\n  ")),
        }
    }
}

#[test]
fn every_migration_ends() {
    expect_every_migration_to_end(&[
        CORE_AND_DEVICE,
        TWO_CORES,
        TWO_ENTRIES_OF_A_DEVICE,
        FULL_TABLE,
    ]);
}

#[test]
#[ignore = "minutes: make check-protocol"]
fn every_migration_ends_on_larger_machines() {
    expect_every_migration_to_end(&[
        TWO_ENTRIES,
        Configuration {
            cores: 3,
            ..ONE_CORE
        },
        Configuration {
            cores: 3,
            requests_travel: false,
            ..CORE_AND_DEVICE
        },
        Configuration {
            device: true,
            ..TWO_LINES
        },
        Configuration {
            cores: 2,
            device: true,
            requests_travel: false,
            ..TWO_LINES
        },
        Configuration {
            requests_travel: true,
            ..TWO_ENTRIES
        },
    ]);
}

/// Two entries, three cores, two lines of each page, a device, and requests on their way.
#[test]
#[ignore = "minutes: make check-protocol"]
fn every_migration_ends_on_the_machine_with_everything() {
    expect_every_migration_to_end(&[
        EVERYTHING,
        Configuration {
            entries: 1,
            ..EVERYTHING
        },
    ]);
}

/// Who waits for an acknowledgement that never comes is found.
#[test]
fn a_core_that_never_enters_the_kernel_keeps_its_migration_from_ending() {
    for configuration in [CORE_AND_DEVICE, TWO_ENTRIES_OF_A_DEVICE, FULL_TABLE]
        .into_iter()
        .flat_map(designs)
    {
        let deaf = Configuration {
            every_agent_invalidates: false,
            ..configuration
        };
        let ending = search_for_a_dead_end(&mut Model::new(deaf), MAX_STATES);
        assert!(matches!(ending, Ending::Never { .. }), "{deaf}: {ending:?}");
    }
}

/// A rule that is broken, and in which of the four designs (in the order of [`designs`]) that can
/// be seen.
struct Mutant {
    name: &'static str,
    change: fn(&mut Configuration),
    fails: [bool; 4],
}

const ALWAYS: [bool; 4] = [true; 4];
const CACHEABLE: [bool; 4] = [true, false, true, false];
const NONCACHEABLE: [bool; 4] = [false, true, false, true];
const SWITCH_THEN_COPY: [bool; 4] = [false, false, true, true];

/// `docs/design/migration.md` says why the others do not fail.
const MUTANTS: [Mutant; 15] = [
    Mutant {
        name: "no invalidation of the opposite alias",
        change: |c| c.rules.invalidate_opposite = false,
        fails: CACHEABLE,
    },
    Mutant {
        name: "write-backs are not redirected",
        change: |c| c.rules.redirect_write_backs = false,
        fails: CACHEABLE,
    },
    Mutant {
        name: "requests for the destination are not redirected",
        change: |c| c.rules.redirect_destination = false,
        fails: SWITCH_THEN_COPY,
    },
    Mutant {
        name: "a core's invalidation is not awaited",
        change: |c| c.rules.await_every_core = false,
        fails: ALWAYS,
    },
    Mutant {
        name: "an acknowledgement counts for every page",
        change: |c| c.rules.acknowledge_each_page = false,
        fails: ALWAYS,
    },
    Mutant {
        name: "the IOTLB's invalidation is not awaited",
        change: |c| c.rules.await_iotlb = false,
        fails: ALWAYS,
    },
    Mutant {
        name: "Clear does not recall the source's lines",
        change: |c| c.rules.recall_source_at_clear = false,
        fails: [true, false, false, false],
    },
    Mutant {
        name: "requests under way are not awaited",
        change: |c| c.rules.await_requests = false,
        fails: ALWAYS,
    },
    Mutant {
        name: "requests under way are awaited by Clear, not by the copy",
        change: |c| c.drains_reported = false,
        fails: [false, false, true, false],
    },
    Mutant {
        name: "page walks survive an invalidation",
        change: |c| c.invalidation_stops_walks = false,
        fails: ALWAYS,
    },
    Mutant {
        name: "holders of the mapping are counted before the switch",
        change: |c| c.holders = Holders::BeforeSwitch,
        fails: ALWAYS,
    },
    Mutant {
        name: "the copy does not recall lines",
        change: |c| c.rules.recall_at_copy = false,
        fails: [false, false, true, false],
    },
    Mutant {
        name: "Migrate does not recall the source's lines",
        change: |c| c.rules.recall_source_at_migrate = false,
        fails: NONCACHEABLE,
    },
    Mutant {
        name: "the destination is not flushed",
        change: |c| c.rules.flush_destination = false,
        fails: ALWAYS,
    },
    Mutant {
        name: "neither Clear nor the copy recalls lines",
        change: |c| {
            c.rules.recall_source_at_clear = false;
            c.rules.recall_at_copy = false;
        },
        fails: CACHEABLE,
    },
];

/// Takes each mutant in each design to larger and larger machines until it fails.
fn expect_mutants_to_fail_where_they_should(machines: &[Configuration], print: bool) {
    for mutant in &MUTANTS {
        for (design, fails) in mutant.fails.into_iter().enumerate() {
            let mut refuted = false;
            for &machine in machines {
                let mut configuration = designs(machine)[design];
                // Wrong data are worse than two aliases, and what leads to them.
                configuration.forbid_double_alias = false;
                (mutant.change)(&mut configuration);
                if !configuration.is_symmetric() && configuration.cores > 1 {
                    continue;
                }
                match search(&mut Model::new(configuration), MAX_STATES) {
                    Outcome::Holds { states, .. } => {
                        if print && !fails && machine.cores == 2 {
                            println!("{}, {configuration}: holds, {states} states", mutant.name);
                        }
                    }
                    Outcome::Refuted {
                        states,
                        violation,
                        steps,
                    } => {
                        if print {
                            println!(
                                "{}, {configuration}: fails after {states} states:",
                                mutant.name
                            );
                            println!("  {}", steps.join("\n  "));
                        }
                        assert!(
                            fails,
                            "{}, {configuration}: {violation}\n  {}",
                            mutant.name,
                            steps.join("\n  ")
                        );
                        refuted = true;
                        break;
                    }
                    Outcome::TooManyStates => panic!("{configuration}: too many states"),
                }
            }
            assert_eq!(refuted, fails, "{}, design {design}", mutant.name);
        }
    }
}

#[test]
fn each_broken_rule_is_found_out() {
    expect_mutants_to_fail_where_they_should(
        &[
            ONE_CORE,
            DEVICE,
            CORE_AND_DEVICE,
            TWO_CORES,
            TWO_ENTRIES_OF_A_DEVICE,
        ],
        false,
    );
}

#[test]
#[ignore = "a minute: make check-protocol"]
fn each_broken_rule_is_found_out_on_larger_machines() {
    expect_mutants_to_fail_where_they_should(
        &[
            ONE_CORE,
            DEVICE,
            CORE_AND_DEVICE,
            TWO_CORES,
            TWO_LINES,
            TWO_ENTRIES,
            TWO_CORES_AND_DEVICE,
        ],
        true,
    );
}

#[test]
fn two_aliases_are_found_at_once() {
    let mut configuration = ONE_CORE;
    configuration.rules.invalidate_opposite = false;
    let outcome = search(&mut Model::new(configuration), MAX_STATES);
    assert!(
        matches!(
            outcome,
            Outcome::Refuted {
                violation: model::Violation::DoubleAlias,
                ..
            }
        ),
        "{outcome:?}"
    );
}

#[test]
fn packing_loses_nothing() {
    let mut model = Model::new(CORE_AND_DEVICE);
    let mut actions = Vec::new();
    let mut states = model.initial_states();
    for _ in 0..2000 {
        let Some(state) = states.pop() else { break };
        let packed = model.pack(&state);
        // One core is its own symmetric group.
        assert_eq!(model.unpack(packed), state);
        model.actions(&state, &mut actions);
        for &action in &actions {
            assert!(model.allows(&state, action), "{action:?}");
            states.push(model.step(&state, action).unwrap());
        }
    }
}
