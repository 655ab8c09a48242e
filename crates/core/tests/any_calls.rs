//! Does the window keep its promises whatever is called in whatever order?

use crate::common::{load, operation, skylake, store};
use contigua_core::{Blocks, Window};
use contigua_program::decode::OperationClass as Class;
use contigua_units::{Cycles, PhysAddr, VirtAddr};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Call {
    Enter(usize),
    Fetch(u64, bool, u64),
    Access(usize, bool),
    Answer(u64, u64, bool, u64),
    Drain,
    Kernel(u64),
    Wait(u64),
    Reset,
    Learn(usize),
}

fn calls() -> impl Strategy<Value = Call> {
    prop_oneof![
        4 => (0..4_usize).prop_map(Call::Enter),
        1 => (0..300_u64, any::<bool>(), 0..300_u64).prop_map(|(t, w, d)| Call::Fetch(t, w, d)),
        8 => (0..12_usize, any::<bool>()).prop_map(|(index, store)| Call::Access(index, store)),
        8 => (0..4096_u64, 0..3000_u64, any::<bool>(), 0..3000_u64)
            .prop_map(|(address, t, w, d)| Call::Answer(address << 3, t / 1000 * t, w, d / 1000 * d)),
        1 => Just(Call::Drain),
        1 => (0..5000_u64).prop_map(Call::Kernel),
        1 => (0..100_000_u64).prop_map(Call::Wait),
        1 => Just(Call::Reset),
        1 => (0..4_usize).prop_map(Call::Learn),
    ]
}

proptest! {
    #[test]
    fn time_advances_and_cycle_components_add_up(calls in proptest::collection::vec(calls(), 0..300)) {
        let config = skylake();
        let mut blocks = Blocks::new(&config);
        let code = [
            load(&[0], 1),
            operation(Class::IntegerDivide, &[1], &[0]),
            store(&[0], &[1]),
            operation(Class::Atomic, &[0], &[1]),
            operation(Class::Other, &[0, 1, 2, 3, 5, 6, 7], &[0, 1, 2, 3, 5, 6]),
            operation(Class::Serializing, &[], &[]),
            operation(Class::Return, &[1], &[]),
        ];
        let learn = |blocks: &mut Blocks, block: usize| {
            let address = VirtAddr::new(0x1000 * block as u64);
            // Some of them have no bytes, and one is empty.
            blocks.learn(block, address, &vec![3; block * 3], &code[..(block * 3).min(7)]);
        };
        (0..4).for_each(|block| learn(&mut blocks, block));
        let mut window = Window::new(&config).unwrap();
        let mut now = window.now();
        for call in calls {
            let cycles = Cycles::new;
            match call {
                Call::Enter(block) => window.enter(&blocks, block),
                Call::Fetch(t, walked, data) => window.fetch(cycles(t), walked, cycles(data)),
                Call::Access(index, store) => {
                    window.access(&blocks, index, store);
                }
                Call::Answer(address, t, walked, data) => {
                    window.answer(PhysAddr::new(address), cycles(t), walked, cycles(data));
                }
                Call::Drain => window.drain(&blocks),
                Call::Kernel(work) => window.kernel(cycles(work)),
                Call::Wait(time) => window.wait_until(cycles(time)),
                Call::Reset => window.reset(),
                Call::Learn(block) => learn(&mut blocks, block),
            }
            prop_assert!(window.now() >= now);
            prop_assert_eq!(window.breakdown().total(), window.cycles());
            now = window.now();
        }
    }
}
