//! States in 128 bits.

use contigua_cache::migration::Agent;

use super::model::{ALIASES, AgentState, Held, IDLE, InFlight, Model, State, Translation, Value};
use super::{MAX_CORES, MAX_LINES, MAX_PAGES};

impl Model {
    /// The state of its symmetric group that stands for all, in 128 bits: cores are alike, so they
    /// come in the order of what they hold and whether they have acknowledged.
    pub fn pack(&mut self, state: &State) -> u128 {
        let cores = self.configuration.cores;
        let transfers = self.control(state).pages.map(|page| page.transfer);
        let lines = self.packed_lines();
        let mut order = [(u64::MAX, 0, 0); MAX_CORES];
        for (core, key) in order.iter_mut().enumerate().take(cores) {
            let agent = Agent::core(core);
            let acknowledged = transfers.iter().fold(0, |all, transfer| {
                let missing = u8::from(transfer.missing().contains(agent));
                3 * all + missing + u8::from(transfer.uninvalidated().contains(agent))
            });
            *key = (
                pack_agent(&state.agents[core], lines),
                acknowledged,
                core as u8,
            );
        }
        order[..cores].sort_unstable();
        let mut names = [0, 1, 2];
        for (new, &(_, _, old)) in order[..cores].iter().enumerate() {
            names[usize::from(old)] = new as u8;
        }
        let acknowledged = transfers.iter().all(|one| one.missing().is_empty());
        let control = if acknowledged || names == [0, 1, 2] {
            state.control
        } else {
            self.rename(state.control, names)
        };
        let mut packed = u128::from(control);
        for &(word, _, _) in &order[..cores] {
            packed = packed << core_bits(lines) | u128::from(word);
        }
        let device = pack_agent(&state.agents[cores], 0);
        packed = packed << DEVICE_BITS | u128::from(device);
        for frame in &state.frames {
            for value in &frame[..lines] {
                packed = packed << 2 | *value as u128;
            }
        }
        packed
    }

    /// The inverse of [`Model::pack`].
    pub fn unpack(&self, mut packed: u128) -> State {
        let mut take = |bits: u32| {
            let value = packed & ((1 << bits) - 1);
            packed >>= bits;
            value as u64
        };
        let lines = self.packed_lines();
        let mut state = State {
            control: 0,
            agents: [IDLE; MAX_CORES + 1],
            frames: [[Value::Page; MAX_LINES], [Value::Outdated; MAX_LINES]],
        };
        for frame in state.frames.iter_mut().rev() {
            for value in frame[..lines].iter_mut().rev() {
                *value = VALUES[take(2) as usize];
            }
        }
        let cores = self.configuration.cores;
        state.agents[cores] = unpack_agent(take(DEVICE_BITS), 0);
        for core in (0..cores).rev() {
            state.agents[core] = unpack_agent(take(core_bits(lines)), lines);
        }
        state.control = take(CONTROL_BITS) as u32;
        state
    }

    /// Lines whose contents a packed state holds.
    fn packed_lines(&self) -> usize {
        if self.configuration.contents {
            usize::from(self.configuration.all_lines())
        } else {
            0
        }
    }

    fn rename(&mut self, control: u32, names: [u8; MAX_CORES]) -> u32 {
        if let Some(&renamed) = self.renamed.get(&(control, names)) {
            return renamed;
        }
        let mut renamed = self.controls[control as usize];
        for page in &mut renamed.pages {
            page.transfer = page.transfer.renamed(|agent| {
                let number = agent.core_number();
                number.map_or(agent, |number| Agent::core(usize::from(names[number])))
            });
        }
        let renamed = self.number(&renamed);
        self.renamed.insert((control, names), renamed);
        renamed
    }
}

const VALUES: [Value; 3] = [Value::Outdated, Value::Page, Value::NextOwner];
const HELD: [Held; 4] = [
    Held::Shared,
    Held::Exclusive,
    Held::Modified,
    Held::OnTheWayBack,
];

/// Bits of a request: frame, read or write, one of four lines.
const REQUEST_BITS: u32 = 5;
/// Bits of a device: translations in 3 each, request.
const DEVICE_BITS: u32 = 3 * MAX_PAGES as u32 + REQUEST_BITS;
/// Bits of the number of a control.
const CONTROL_BITS: u32 = 28;

/// Bits of a core: cells in 4 each besides.
const fn core_bits(lines: usize) -> u32 {
    DEVICE_BITS + 4 * 2 * lines as u32
}

const _: () = assert!(
    CONTROL_BITS + MAX_CORES as u32 * core_bits(2) + DEVICE_BITS + 2 * 2 * 2 <= u128::BITS
        && MAX_LINES <= 4
);

/// The agent with the contents of some lines.
fn pack_agent(agent: &AgentState, lines: usize) -> u64 {
    let mut word = 0;
    for cells in agent.cells.iter().rev() {
        for cell in cells[..lines].iter().rev() {
            let cell = cell.map_or(0, |(held, value)| 1 + held as u64 * 3 + value as u64);
            word = word << 4 | cell;
        }
    }
    let request = agent.request.map_or(0, |request| {
        1 + (request.alias as u64 | u64::from(request.write) << 1 | u64::from(request.line) << 2)
    });
    word = word << REQUEST_BITS | request;
    for translation in agent.translations.iter().rev() {
        let bits = match translation {
            Translation::Absent => 0,
            Translation::Walking(alias) => 1 + *alias as u64,
            Translation::Present(alias) => 3 + *alias as u64,
        };
        word = word << 3 | bits;
    }
    word
}

/// The inverse of [`pack_agent`].
fn unpack_agent(mut word: u64, lines: usize) -> AgentState {
    let mut agent = IDLE;
    for translation in &mut agent.translations {
        *translation = match word & 7 {
            0 => Translation::Absent,
            walking @ (1 | 2) => Translation::Walking(ALIASES[walking as usize - 1]),
            present => Translation::Present(ALIASES[present as usize - 3]),
        };
        word >>= 3;
    }
    let request = word & ((1 << REQUEST_BITS) - 1);
    agent.request = request.checked_sub(1).map(|bits| InFlight {
        alias: ALIASES[(bits & 1) as usize],
        line: (bits >> 2) as u16,
        write: bits >> 1 & 1 == 1,
    });
    word >>= REQUEST_BITS;
    for cells in &mut agent.cells {
        for cell in &mut cells[..lines] {
            *cell = (word & 15)
                .checked_sub(1)
                .map(|bits| (HELD[bits as usize / 3], VALUES[bits as usize % 3]));
            word >>= 4;
        }
    }
    agent
}
