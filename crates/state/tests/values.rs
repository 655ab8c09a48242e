//! Does what was written come back, and nothing else?

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use contigua_state::{Error, Plain, Reader, State, Writer};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Plain)]
enum Kind {
    Nothing,
    Number(u32),
    Pair { left: u8, right: bool },
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Nothing),
        any::<u32>().prop_map(Kind::Number),
        any::<(u8, bool)>().prop_map(|(left, right)| Kind::Pair { left, right }),
    ]
}

#[derive(Clone, Debug, PartialEq, Plain)]
struct Record {
    kinds: Vec<Kind>,
    names: BTreeMap<String, Option<i64>>,
    numbers: HashMap<u16, u128>,
    members: HashSet<u32>,
    queue: VecDeque<(u64, f64)>,
    fixed: [usize; 3],
}

fn record() -> impl Strategy<Value = Record> {
    (
        prop::collection::vec(kind(), 0..20),
        prop::collection::btree_map(".{0,5}", any::<Option<i64>>(), 0..5),
        prop::collection::hash_map(any::<u16>(), any::<u128>(), 0..5),
        prop::collection::hash_set(any::<u32>(), 0..5),
        prop::collection::vec_deque((any::<u64>(), -1e300..1e300), 0..5),
        any::<[usize; 3]>(),
    )
        .prop_map(|(kinds, names, numbers, members, queue, fixed)| Record {
            kinds,
            names,
            numbers,
            members,
            queue,
            fixed,
        })
}

trait Part: State {}

#[derive(State)]
struct Counter(u64);
impl Part for Counter {}

/// A component with a field of every type.
#[derive(State)]
struct Component {
    #[state(skip)]
    capacity: usize,
    #[state(fixed)]
    slots: Box<[u64]>,
    #[state(fixed)]
    parts: Vec<Counter>,
    #[state(fixed)]
    maybe: Option<Counter>,
    #[state(boxed)]
    boxed: Option<Box<Counter>>,
    #[state(inner)]
    object: Box<dyn Part>,
    record: Record,
}

impl Component {
    fn new(capacity: usize, has_parts: bool, record: Record) -> Self {
        Self {
            capacity,
            slots: (0..capacity as u64).collect(),
            parts: (1..4).map(Counter).collect(),
            maybe: has_parts.then_some(Counter(7)),
            boxed: has_parts.then(|| Box::new(Counter(8))),
            object: Box::new(Counter(9)),
            record,
        }
    }
}

fn saved(state: &dyn State) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes);
    state.save(&mut writer);
    assert_eq!(writer.finish().unwrap(), bytes.len() as u64);
    bytes
}

fn load(state: &mut dyn State, mut bytes: &[u8]) -> Result<(), Error> {
    let most = bytes.len() as u64;
    let mut reader = Reader::new(&mut bytes, most);
    state.load(&mut reader)?;
    reader.finish()
}

fn empty() -> Record {
    Record {
        kinds: Vec::new(),
        names: BTreeMap::new(),
        numbers: HashMap::new(),
        members: HashSet::new(),
        queue: VecDeque::new(),
        fixed: [0; 3],
    }
}

proptest! {
    #[test]
    fn saved_state_round_trips(record in record(), has_parts: bool, capacity in 0..20_000usize) {
        let component = Component::new(capacity, has_parts, record.clone());
        let bytes = saved(&component);
        let mut other = Component::new(capacity, has_parts, empty());
        other.slots.fill(0);
        other.parts.iter_mut().for_each(|part| part.0 = 0);
        load(&mut other, &bytes).unwrap();
        prop_assert_eq!(&other.record, &record);
        prop_assert_eq!(saved(&other), bytes.clone());

        for (capacity, has_parts) in [(capacity + 1, has_parts), (capacity, !has_parts)] {
            let mut other = Component::new(capacity, has_parts, empty());
            prop_assert!(matches!(load(&mut other, &bytes), Err(Error::Length)));
            prop_assert_eq!(other.capacity, capacity);
        }
    }

    #[test]
    fn state_of_another_length_is_refused(record in record(), at in any::<prop::sample::Index>()) {
        let mut bytes = saved(&record);
        let mut other = empty();
        prop_assert!(load(&mut other, &bytes[..at.index(bytes.len())]).is_err());
        bytes.push(0);
        prop_assert!(matches!(load(&mut other, &bytes), Err(Error::Rest)));
    }

    #[test]
    fn no_bytes_panic_or_take_much_memory(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = load(&mut empty(), &bytes);
        let _ = load(&mut Component::new(3, true, empty()), &bytes);
    }
}

#[test]
fn a_length_beyond_what_is_there_is_refused_before_memory_is_taken() {
    for length in [9, 1 << 40, u64::MAX] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([0; 8]);
        let mut list: Vec<u8> = Vec::new();
        assert!(
            matches!(load(&mut list, &bytes), Err(Error::End)),
            "{length}"
        );
    }
}

#[test]
fn state_of_other_fields_is_refused() {
    #[derive(State)]
    struct Other(u32, u32);
    let bytes = saved(&Counter(1));
    assert!(matches!(load(&mut Other(0, 0), &bytes), Err(Error::Layout)));
}

#[test]
fn an_error_of_the_file_is_kept() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut full = Full;
    let mut writer = Writer::new(&mut full);
    vec![0_u64; 100_000].save(&mut writer);
    let error = writer.finish().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
}

#[test]
fn a_bool_is_zero_or_one() {
    let mut value = false;
    load(&mut value, &[1]).unwrap();
    assert!(value);
    assert!(matches!(load(&mut value, &[2]), Err(Error::Value)));
}
