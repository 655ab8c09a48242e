//! Does the allocator keep its promises under any sequence of operations?

use std::collections::BTreeMap;

use contigua_contiguity::{FrameKind, Scan};
use contigua_frames::{Error, FrameClass, FrameRecord, Frames, Owner};
use contigua_units::{Frame, Order, VirtPage};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Operation {
    Allocate(u8, usize),
    AllocateAt(u32),
    Free(usize),
    Share(usize),
    Unshare(usize),
    Split(usize),
    FreeAny(u32),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => (0..=10u8, 1..8usize).prop_map(|(o, c)| Operation::Allocate(o, c)),
        4 => any::<u32>().prop_map(Operation::AllocateAt),
        8 => any::<usize>().prop_map(Operation::Free),
        2 => any::<usize>().prop_map(Operation::Share),
        2 => any::<usize>().prop_map(Operation::Unshare),
        1 => any::<usize>().prop_map(Operation::Split),
        1 => any::<u32>().prop_map(Operation::FreeAny),
    ]
}

/// An allocated block as the model sees it.
#[derive(Clone, Copy)]
struct Block {
    frames: u32,
    class: FrameClass,
    references: u32,
}

fn pick(live: &BTreeMap<u32, Block>, choice: usize) -> Option<u32> {
    live.keys().nth(choice % live.len().max(1)).copied()
}

fn owner(frame: u32) -> Owner {
    Owner {
        space: 3,
        page: VirtPage::new(u64::from(frame) + (1 << 35)),
    }
}

proptest! {
    #[test]
    fn no_frame_is_lost_or_handed_out_twice(
        total in 1..5000u32, operations in proptest::collection::vec(operation(), 1..300)
    ) {
        let mut frames = Frames::new(vec![FrameRecord::default(); total as usize]).unwrap();
        let mut live: BTreeMap<u32, Block> = BTreeMap::new();
        let mut used = vec![false; total as usize];
        for operation in operations {
            match operation {
                Operation::Allocate(order, class) => {
                    let (order, class) = (Order::new(order), FrameClass::ALL[class]);
                    let Some(frame) = frames.allocate(order, class) else {
                        prop_assert!(!frames.has_free_block(order));
                        continue;
                    };
                    prop_assert!(frame.is_aligned(order));
                    for used in &mut used[frame.index()..][..order.frames() as usize] {
                        prop_assert!(!std::mem::replace(used, true), "handed out twice");
                    }
                    live.insert(frame.get(), Block { frames: order.frames(), class, references: 1 });
                    frames.set_owner(frame, Some(owner(frame.get()))).unwrap();
                }
                Operation::AllocateAt(at) => {
                    let at = at % (total + 3);
                    let result = frames.allocate_at(Frame::new(at), FrameClass::Slab);
                    match used.get_mut(at as usize) {
                        None => prop_assert_eq!(result, Err(Error::NoSuchFrame(Frame::new(at)))),
                        Some(true) => prop_assert_eq!(result, Err(Error::InUse(Frame::new(at)))),
                        Some(used) => {
                            prop_assert_eq!(result, Ok(()));
                            *used = true;
                            let block = Block { frames: 1, class: FrameClass::Slab, references: 1 };
                            live.insert(at, block);
                        }
                    }
                }
                Operation::Free(choice) => {
                    let Some(frame) = pick(&live, choice) else { continue };
                    if live[&frame].references > 1 {
                        let shared = Error::Shared(Frame::new(frame));
                        prop_assert_eq!(frames.free(Frame::new(frame)), Err(shared));
                    } else {
                        frames.free(Frame::new(frame)).unwrap();
                        let block = live.remove(&frame).unwrap();
                        used[frame as usize..][..block.frames as usize].fill(false);
                    }
                }
                Operation::Share(choice) => {
                    let Some(frame) = pick(&live, choice) else { continue };
                    frames.add_reference(Frame::new(frame)).unwrap();
                    live.get_mut(&frame).unwrap().references += 1;
                }
                Operation::Unshare(choice) => {
                    let Some(frame) = pick(&live, choice) else { continue };
                    let block = live.get_mut(&frame).unwrap();
                    block.references -= 1;
                    let last = block.references == 0;
                    prop_assert_eq!(frames.drop_reference(Frame::new(frame)), Ok(last));
                    if last {
                        let block = live.remove(&frame).unwrap();
                        used[frame as usize..][..block.frames as usize].fill(false);
                    }
                }
                Operation::Split(choice) => {
                    let Some(frame) = pick(&live, choice) else { continue };
                    let owned = frames.owner(Frame::new(frame));
                    frames.split(Frame::new(frame)).unwrap();
                    let block = live.remove(&frame).unwrap();
                    for i in 0..block.frames {
                        live.insert(frame + i, Block { frames: 1, ..block });
                        let expected = owned.map(|o| Owner {
                            page: VirtPage::new(o.page.get() + u64::from(i)), ..o
                        });
                        prop_assert_eq!(frames.owner(Frame::new(frame + i)), expected);
                    }
                }
                Operation::FreeAny(at) => {
                    let at = at % (total + 3);
                    if !live.contains_key(&at) {
                        prop_assert!(frames.free(Frame::new(at)).is_err());
                    }
                }
            }
            prop_assert_eq!(frames.validate(), Ok(()));
            prop_assert_eq!(frames.free_frames(), used.iter().filter(|u| !**u).count() as u64);
        }
        for (&frame, block) in &live {
            prop_assert_eq!(frames.references(Frame::new(frame)), block.references);
        }
        let mut scan = Scan::new();
        let mut at = 0;
        while at < total {
            let block = live.get(&at);
            let kind = block.map_or(FrameKind::Free, |block| block.class.kind());
            let count = block.map_or(1, |block| block.frames);
            scan.push(kind, u64::from(count));
            at += count;
        }
        prop_assert_eq!(frames.contiguity(), scan.finish());
    }
}

#[test]
fn everything_merges_back_when_everything_is_freed() {
    let mut frames = Frames::new(vec![FrameRecord::default(); 4096]).unwrap();
    let mut taken: Vec<Frame> =
        std::iter::from_fn(|| frames.allocate(Order::BASE, FrameClass::Anonymous)).collect();
    assert_eq!(taken.len(), 4096);
    assert_eq!(frames.free_frames(), 0);
    // An order that leaves holes everywhere before it closes them.
    taken.sort_by_key(|frame| frame.get().reverse_bits());
    for frame in taken {
        frames.free(frame).unwrap();
    }
    assert_eq!(frames.validate(), Ok(()));
    assert_eq!(frames.blocks().count(), 4);
}
