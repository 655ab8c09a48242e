//! Do the table of migrations and the operating system's half of one keep their promises? What
//! they achieve together is the question of `tests/protocol`.

use contigua_cache::migration::{
    Agent, Agents, Alias, ClearError, EntryId, LINES_PER_PAGE, MAX_ENTRIES, Mode, Phase, Refusal,
    Request, SwitchOrder, Table, Transfer, TransferEffect, TransferEvent,
};
use contigua_units::Frame;
use proptest::prelude::*;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};

const REQUESTS: [Request; 5] = [
    Request::Read,
    Request::Own,
    Request::WriteBack,
    Request::DeviceRead,
    Request::DeviceWrite,
];
const ORDERS: [SwitchOrder; 2] = [SwitchOrder::CopyThenSwitch, SwitchOrder::SwitchThenCopy];
const MODES: [Mode; 2] = [Mode::Cacheable, Mode::Noncacheable];

fn table() -> Table {
    Table::new(MAX_ENTRIES)
}

fn migrate(table: &mut Table, source: u32, destination: u32, order: SwitchOrder) -> EntryId {
    let (source, destination) = (Frame::new(source), Frame::new(destination));
    let admission = table.migrate(source, destination, Mode::Cacheable, order);
    admission.expect("the table has room").entry
}

fn copy_all(table: &mut Table, entry: EntryId) {
    while table.copy_step(entry).is_some() {}
}

#[test]
fn lines_are_at_the_destination_below_the_pointer_and_at_the_source_from_it_on() {
    let mut table = table();
    let entry = migrate(&mut table, 1, 2, SwitchOrder::CopyThenSwitch);
    for pointer in 0..=LINES_PER_PAGE {
        assert_eq!(table.pointer(entry), pointer);
        for line in 0..LINES_PER_PAGE {
            let expected = if line < pointer {
                Alias::Destination
            } else {
                Alias::Source
            };
            for request in REQUESTS {
                let service = table.serve(entry, line, request);
                assert_eq!(service.location, expected);
            }
        }
        assert_eq!(table.copy_step(entry).is_some(), pointer < LINES_PER_PAGE);
    }
}

#[test]
fn each_line_is_copied_once_and_in_order() {
    for order in ORDERS {
        let mut table = table();
        let entry = migrate(&mut table, 1, 2, order);
        if order == SwitchOrder::SwitchThenCopy {
            assert_eq!(table.copy_step(entry), None);
            assert!(!table.is_copying(entry));
            table.start_copy(entry);
        }
        for line in 0..LINES_PER_PAGE {
            assert!(table.is_copying(entry));
            let step = table.copy_step(entry).unwrap();
            assert_eq!(step.line, line);
            assert_eq!(
                (step.source, step.destination),
                (Frame::new(1), Frame::new(2))
            );
            assert!(step.recall_source && step.recall_destination);
            assert_eq!(step.last, line == LINES_PER_PAGE - 1);
            assert_eq!(table.validate(), Ok(()));
        }
        table.start_copy(entry);
        assert_eq!(table.copy_step(entry), None);
        assert!(!table.is_copying(entry));
    }
}

#[test]
fn the_seventeenth_migration_is_refused_and_changes_nothing() {
    let mut table = table();
    assert!(table.is_empty());
    let mut entries = Vec::new();
    for pair in 0..MAX_ENTRIES as u32 {
        entries.push(migrate(
            &mut table,
            pair,
            100 + pair,
            SwitchOrder::CopyThenSwitch,
        ));
    }
    let before = table;
    let refused = table.migrate(
        Frame::new(50),
        Frame::new(150),
        Mode::Cacheable,
        SwitchOrder::CopyThenSwitch,
    );
    assert_eq!(refused, Err(Refusal::Full { capacity: 16 }));
    assert_eq!(table, before);

    copy_all(&mut table, entries[7]);
    assert!(table.clear(entries[7]).unwrap().recall_source_lines);
    let retired = table.retire(entries[7]).unwrap();
    assert_eq!(
        (retired.source, retired.destination),
        (Frame::new(7), Frame::new(107))
    );
    assert_eq!(table.len(), 15);
    assert_eq!(table.find(Frame::new(7)), None);
    let again = migrate(&mut table, 50, 150, SwitchOrder::CopyThenSwitch);
    assert_eq!(again, entries[7]);
    assert_eq!(table.pointer(again), 0);
    assert_eq!(table.find(Frame::new(50)), Some((again, Alias::Source)));
    assert_eq!(table.validate(), Ok(()));
}

#[test]
fn a_frame_takes_part_in_one_migration_at_a_time() {
    let mut table = Table::new(1);
    migrate(&mut table, 1, 2, SwitchOrder::CopyThenSwitch);
    let before = table;
    for (source, destination, busy) in [(1, 3, 1), (2, 3, 2), (3, 1, 1), (3, 2, 2)] {
        // The table is full as well, but to wait for room would be in vain.
        let refused = table.migrate(
            Frame::new(source),
            Frame::new(destination),
            Mode::Cacheable,
            SwitchOrder::CopyThenSwitch,
        );
        let frame = Frame::new(busy);
        assert_eq!(refused, Err(Refusal::Busy { frame }));
    }
    let frame = Frame::new(3);
    let refused = table.migrate(frame, frame, Mode::Cacheable, SwitchOrder::CopyThenSwitch);
    assert_eq!(refused, Err(Refusal::Same { frame }));
    assert_eq!(table, before);
    assert_eq!(
        refused.unwrap_err().to_string(),
        "frame 0x3 cannot move onto itself"
    );
}

#[test]
fn an_entry_stays_until_all_lines_are_copied_and_it_was_cleared() {
    let mut table = table();
    let entry = migrate(&mut table, 1, 2, SwitchOrder::CopyThenSwitch);
    for pointer in 0..LINES_PER_PAGE {
        let before = table;
        let refused = table.clear(entry).unwrap_err();
        assert_eq!(refused, ClearError::NotCopied { pointer, lines: 64 });
        assert_eq!(table, before);
        let _ = table.copy_step(entry);
    }
    assert_eq!(table.retire(entry), Err(ClearError::NotCleared));
    assert!(table.clear(entry).is_ok());
    // Lines that are recalled now go where they belong.
    let service = table.serve(entry, 63, Request::WriteBack);
    assert_eq!(service.location, Alias::Destination);
    assert!(table.retire(entry).is_ok());
    assert!(table.is_empty());
}

#[test]
fn a_frozen_copy_redirects_for_ever() {
    let mut table = table();
    let entry = migrate(&mut table, 1, 2, SwitchOrder::CopyThenSwitch);
    for _ in 0..10 {
        let _ = table.copy_step(entry);
    }
    table.freeze(entry);
    table.start_copy(entry);
    assert_eq!(table.copy_step(entry), None);
    assert!(table.clear(entry).is_err());
    let at = |line| table.serve(entry, line, Request::Read).location;
    assert_eq!((at(9), at(10)), (Alias::Destination, Alias::Source));
    assert_eq!(table.validate(), Ok(()));
}

#[test]
fn private_caches_are_emptied_when_their_design_needs_it() {
    for order in ORDERS {
        for mode in MODES {
            let mut table = table();
            let admission = table
                .migrate(Frame::new(1), Frame::new(2), mode, order)
                .unwrap();
            let entry = admission.entry;
            let cacheable = mode == Mode::Cacheable;
            assert_eq!(admission.recall_source_lines, !cacheable);
            for request in REQUESTS {
                let service = table.serve(entry, 5, request);
                let keeps = matches!(request, Request::Read | Request::Own);
                assert_eq!(service.retain, cacheable && keeps);
                assert_eq!(
                    service.invalidate_opposite,
                    cacheable && request != Request::WriteBack
                );
            }
            table.start_copy(entry);
            let step = table.copy_step(entry).unwrap();
            assert_eq!(
                (step.recall_source, step.recall_destination),
                (cacheable, cacheable)
            );
            copy_all(&mut table, entry);
            assert_eq!(
                table.clear(entry).unwrap().recall_source_lines,
                cacheable && order == SwitchOrder::CopyThenSwitch
            );
            assert_eq!((table.mode(entry), table.order(entry)), (mode, order));
        }
    }
}

#[derive(Clone, Debug)]
enum Command {
    Migrate(u32, u32, SwitchOrder),
    Copy(usize),
    Clear(usize),
}

fn command() -> impl Strategy<Value = Command> {
    let order = prop_oneof![
        Just(SwitchOrder::CopyThenSwitch),
        Just(SwitchOrder::SwitchThenCopy)
    ];
    prop_oneof![
        2 => (0..24u32, 0..24u32, order).prop_map(|(s, d, o)| Command::Migrate(s, d, o)),
        9 => any::<usize>().prop_map(Command::Copy),
        2 => any::<usize>().prop_map(Command::Clear),
    ]
}

proptest! {
    #[test]
    fn the_table_agrees_with_a_plain_list(
        capacity in 1..=MAX_ENTRIES,
        commands in proptest::collection::vec(command(), 1..300)
    ) {
        const LINES: u8 = 5;
        let mut table = Table::with_lines(capacity, LINES);
        // (entry, source, destination, lines copied)
        let mut list: Vec<(EntryId, Frame, Frame, u8)> = Vec::new();
        for command in commands {
            match command {
                Command::Migrate(source, destination, order) => {
                    let (source, destination) = (Frame::new(source), Frame::new(destination));
                    let busy = |f| list.iter().any(|e| e.1 == f || e.2 == f);
                    let expected = if source == destination {
                        Some(Refusal::Same { frame: source })
                    } else if busy(source) {
                        Some(Refusal::Busy { frame: source })
                    } else if busy(destination) {
                        Some(Refusal::Busy { frame: destination })
                    } else {
                        (list.len() == capacity).then_some(Refusal::Full { capacity })
                    };
                    match table.migrate(source, destination, Mode::Cacheable, order) {
                        Ok(admission) => {
                            prop_assert_eq!(expected, None);
                            table.start_copy(admission.entry);
                            list.push((admission.entry, source, destination, 0));
                        }
                        Err(refusal) => prop_assert_eq!(Some(refusal), expected),
                    }
                }
                Command::Copy(which) if !list.is_empty() => {
                    let at = which % list.len();
                    let (entry, source, destination, copied) = &mut list[at];
                    if let Some(step) = table.copy_step(*entry) {
                        prop_assert_eq!((step.line, step.source), (*copied, *source));
                        prop_assert_eq!(step.destination, *destination);
                        *copied += 1;
                    } else {
                        prop_assert_eq!(*copied, LINES);
                    }
                }
                Command::Clear(which) if !list.is_empty() => {
                    let at = which % list.len();
                    let (entry, source, destination, copied) = list[at];
                    let cleared = table.clear(entry);
                    prop_assert_eq!(cleared.is_ok(), copied == LINES);
                    if cleared.is_ok() {
                        let retired = table.retire(entry).unwrap();
                        prop_assert_eq!((retired.source, retired.destination), (source, destination));
                        list.remove(at);
                    }
                }
                Command::Copy(_) | Command::Clear(_) => {}
            }
            prop_assert_eq!(table.validate(), Ok(()));
            prop_assert_eq!((table.len(), table.is_empty()), (list.len(), list.is_empty()));
            prop_assert_eq!(table.entries().count(), list.len());
            for frame in (0..24).map(Frame::new) {
                let expected = list.iter().find_map(|&(entry, source, destination, _)| {
                    if source == frame {
                        Some((entry, Alias::Source))
                    } else {
                        (destination == frame).then_some((entry, Alias::Destination))
                    }
                });
                prop_assert_eq!(table.find(frame), expected);
                if let Some((entry, alias)) = expected {
                    prop_assert_eq!(table.frame(entry, alias), frame);
                }
            }
        }
    }

    /// Agents acknowledge in any order, early and late, twice, and when nobody asked.
    #[test]
    fn a_transfer_clears_only_after_every_acknowledgement(
        order in prop_oneof![
            Just(SwitchOrder::CopyThenSwitch),
            Just(SwitchOrder::SwitchThenCopy)
        ],
        numbers in proptest::collection::btree_set(0..130usize, 0..10),
        noise in proptest::collection::vec((0..130usize, any::<bool>(), 0..6u8), 0..200)
    ) {
        use TransferEffect as Effect;
        use TransferEvent as Event;
        let agent = |number: usize| if number < 127 { Agent::core(number) } else { Agent::IOMMU };
        let holders: Agents = numbers.iter().copied().map(agent).collect();
        let mut transfer = Transfer::new(order);
        let mut noise = noise.into_iter();
        // What is known to whoever watches from outside.
        let (mut switched, mut copied) = (false, false);
        let (mut invalidated, mut drained) = (Agents::NONE, Agents::NONE);
        let mut next = transfer.on(Event::DestinationReserved).unwrap();
        let mut freed = false;
        while !transfer.is_over() {
            let acknowledged =
                holders.iter().all(|a| invalidated.contains(a) && drained.contains(a));
            let event = match next.take() {
                Some(Effect::FlushDestination) => Event::DestinationFlushed,
                Some(Effect::Migrate) => match noise.next() {
                    Some((_, true, _)) => Event::Refused(Refusal::Full { capacity: 16 }),
                    _ => Event::Accepted,
                },
                Some(Effect::SetPageTables) => {
                    prop_assert_eq!(copied, order == SwitchOrder::CopyThenSwitch);
                    switched = true;
                    Event::PageTablesSet(holders)
                }
                Some(Effect::StartCopy) => {
                    prop_assert!(switched && acknowledged);
                    prop_assert_eq!(order, SwitchOrder::SwitchThenCopy);
                    copied = true;
                    Event::Copied
                }
                Some(Effect::Clear) => {
                    prop_assert!(switched && copied && acknowledged);
                    Event::Cleared
                }
                None if transfer.phase() == Phase::Copy => {
                    copied = true;
                    Event::Copied
                }
                Some(Effect::AwaitAcknowledgements) | None => {
                    prop_assert!(!transfer.missing().is_empty());
                    let first = transfer.missing().iter().next().unwrap();
                    match noise.next() {
                        Some((number, drain, luck)) if luck > 0 => {
                            if drain { Event::Drained(agent(number)) }
                            else { Event::Invalidated(agent(number)) }
                        }
                        _ if transfer.uninvalidated().contains(first) => Event::Invalidated(first),
                        _ => Event::Drained(first),
                    }
                }
                Some(effect) => return Err(TestCaseError::fail(format!("{effect:?}"))),
            };
            match event {
                Event::Invalidated(agent) => invalidated = invalidated.with(agent),
                Event::Drained(agent) if invalidated.contains(agent) => {
                    drained = drained.with(agent);
                }
                _ => {}
            }
            next = transfer.on(event).unwrap();
            if next == Some(Effect::FreeSource) {
                freed = true;
            }
        }
        prop_assert!(freed);
        prop_assert_eq!(transfer.phase(), Phase::Done);
    }
}

#[test]
fn acknowledgements_from_before_the_switch_do_not_count() {
    let mut transfer = Transfer::new(SwitchOrder::SwitchThenCopy);
    let core = Agent::core(3);
    let mut on = |event| transfer.on(event).unwrap();
    on(TransferEvent::DestinationReserved);
    on(TransferEvent::DestinationFlushed);
    on(TransferEvent::Accepted);
    assert_eq!(on(TransferEvent::Invalidated(core)), None);
    assert_eq!(on(TransferEvent::Drained(core)), None);
    let holders = Agents::NONE.with(core);
    assert_eq!(
        on(TransferEvent::PageTablesSet(holders)),
        Some(TransferEffect::AwaitAcknowledgements)
    );
    // Nor does a drain before the invalidation.
    assert_eq!(on(TransferEvent::Drained(core)), None);
    assert_eq!(on(TransferEvent::Invalidated(core)), None);
    assert_eq!(
        on(TransferEvent::Drained(core)),
        Some(TransferEffect::StartCopy)
    );
}

#[test]
fn a_page_that_no_tlb_holds_needs_no_acknowledgement() {
    for (order, expected) in [
        (SwitchOrder::CopyThenSwitch, TransferEffect::Clear),
        (SwitchOrder::SwitchThenCopy, TransferEffect::StartCopy),
    ] {
        let mut transfer = Transfer::new(order);
        let mut on = |event| transfer.on(event).unwrap();
        on(TransferEvent::DestinationReserved);
        on(TransferEvent::DestinationFlushed);
        on(TransferEvent::Accepted);
        if order == SwitchOrder::CopyThenSwitch {
            on(TransferEvent::Copied);
        }
        assert_eq!(
            on(TransferEvent::PageTablesSet(Agents::NONE)),
            Some(expected)
        );
    }
}

#[test]
fn a_refusal_for_good_gives_the_destination_back() {
    let mut transfer = Transfer::new(SwitchOrder::CopyThenSwitch);
    let mut on = |event| transfer.on(event).unwrap();
    on(TransferEvent::DestinationReserved);
    on(TransferEvent::DestinationFlushed);
    let full = TransferEvent::Refused(Refusal::Full { capacity: 16 });
    assert_eq!(on(full), Some(TransferEffect::Migrate));
    let frame = Frame::new(1);
    let busy = TransferEvent::Refused(Refusal::Busy { frame });
    assert_eq!(on(busy), Some(TransferEffect::Abandon));
    assert_eq!(transfer.phase(), Phase::Abandoned);
}

#[test]
fn an_event_out_of_turn_is_an_error_and_changes_nothing() {
    let mut transfer = Transfer::new(SwitchOrder::CopyThenSwitch);
    let script = [
        TransferEvent::DestinationReserved,
        TransferEvent::DestinationFlushed,
        TransferEvent::Accepted,
        TransferEvent::Copied,
        TransferEvent::PageTablesSet(Agents::NONE),
        TransferEvent::Cleared,
    ];
    for expected in script {
        let before = transfer;
        for event in script {
            if event != expected {
                let error = transfer.on(event).unwrap_err();
                assert_eq!((error.phase, error.event), (before.phase(), event));
                assert_eq!(transfer, before);
            }
        }
        transfer.on(expected).unwrap();
    }
    assert_eq!(transfer.phase(), Phase::Done);
    assert!(transfer.on(TransferEvent::Cleared).is_err());
}

#[test]
fn agents_are_cores_and_the_iommu() {
    let agents: Agents = [Agent::IOMMU, Agent::core(126), Agent::core(0)]
        .into_iter()
        .collect();
    assert_eq!(agents.len(), 3);
    let numbers: Vec<_> = agents.iter().map(Agent::core_number).collect();
    assert_eq!(numbers, [Some(0), Some(126), None]);
    assert!(agents.without(Agent::core(0)).contains(Agent::IOMMU));
    assert_eq!(agents.union(Agents::NONE.with(Agent::core(5))).len(), 4);
}

#[test]
fn designs_are_named_in_kebab_case() {
    let name = |name: &'static str| -> StrDeserializer<'static, Error> { name.into_deserializer() };
    assert_eq!(Mode::deserialize(name("cacheable")), Ok(Mode::Cacheable));
    assert_eq!(
        Mode::deserialize(name("noncacheable")),
        Ok(Mode::Noncacheable)
    );
    assert_eq!(
        SwitchOrder::deserialize(name("copy-then-switch")),
        Ok(SwitchOrder::CopyThenSwitch)
    );
    assert_eq!(
        SwitchOrder::deserialize(name("switch-then-copy")),
        Ok(SwitchOrder::SwitchThenCopy)
    );
}
