//! A set-associative array with true least-recently-used replacement.
//!
//! The ways of a set are kept in order of recency, most recent first. Recency then needs no
//! storage of its own, and the common case, a hit on the entry that was used last, is one
//! comparison that changes nothing. The order is exact, so a naive list model agrees with it event
//! by event.

use crate::Error;

/// The key of an empty way; no entry may have it.
pub const EMPTY: u64 = u64::MAX;

/// Entries and ways of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Entries in all.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 16_384)))]
    pub entries: u32,
    /// Entries of a set; as many as there are entries for a fully associative array.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 16_384)))]
    pub ways: u32,
}

/// The array. Keys are unique within their set; values come along.
#[derive(Clone, Debug, contigua_state::State)]
pub struct Sets<V> {
    #[state(skip)]
    ways: usize,
    #[state(skip)]
    count: u64,
    /// `count - 1` when that is a mask, else 0: then sets are chosen by division.
    #[state(skip)]
    mask: u64,
    #[state(fixed)]
    keys: Box<[u64]>,
    #[state(fixed)]
    values: Box<[V]>,
}

impl<V: Copy + Default> Sets<V> {
    /// An empty array; `what` names it in errors.
    ///
    /// # Errors
    /// [`Error::Geometry`] when the entries do not divide into sets, or there are none.
    pub fn new(what: &str, entries: u64, ways: u32) -> Result<Self, Error> {
        let fits = entries > 0 && ways > 0 && entries.is_multiple_of(u64::from(ways));
        let Some(length) = usize::try_from(entries).ok().filter(|_| fits) else {
            return Err(Error::Geometry {
                what: what.to_owned(),
                entries,
                ways,
            });
        };
        let sets = entries / u64::from(ways);
        Ok(Self {
            ways: ways as usize,
            count: sets,
            mask: if sets.is_power_of_two() { sets - 1 } else { 0 },
            keys: vec![EMPTY; length].into(),
            values: vec![V::default(); length].into(),
        })
    }

    /// An empty array of this geometry; `what` names it in errors.
    ///
    /// # Errors
    /// [`Error::Geometry`].
    pub fn with_geometry(what: &str, geometry: Geometry) -> Result<Self, Error> {
        Self::new(what, u64::from(geometry.entries), geometry.ways)
    }

    /// Entries that fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.keys.len()
    }

    /// The set that `number` (a line or page number) belongs to.
    #[must_use]
    #[inline]
    pub fn set_of(&self, number: u64) -> u64 {
        if self.mask != 0 || self.count == 1 {
            number & self.mask
        } else {
            number % self.count
        }
    }

    /// Index of the first way of a set.
    #[inline]
    fn first_way(&self, number: u64) -> usize {
        self.set_of(number) as usize * self.ways
    }

    /// The value of `key` if it was the last one used in the set of `number`.
    #[inline]
    pub fn most_recent(&mut self, number: u64, key: u64) -> Option<&mut V> {
        let first = self.first_way(number);
        (self.keys[first] == key).then(|| &mut self.values[first])
    }

    /// The value of `key`, which becomes the most recently used one in the set of `number`.
    #[inline]
    pub fn lookup(&mut self, number: u64, key: u64) -> Option<&mut V> {
        let first = self.first_way(number);
        let keys = &mut self.keys[first..first + self.ways];
        let values = &mut self.values[first..first + self.ways];
        if keys[0] == key {
            return Some(&mut values[0]);
        }
        let way = keys.iter().position(|&k| k == key)?;
        // Most hits are on the first few entries: moving them one by one is faster than a call.
        let (mut last_key, mut last_value) = (key, values[way]);
        for (key, value) in keys[..=way].iter_mut().zip(&mut values[..=way]) {
            last_key = core::mem::replace(key, last_key);
            last_value = core::mem::replace(value, last_value);
        }
        Some(&mut values[0])
    }

    /// The value of `key`, which keeps its place in the order of use.
    #[inline]
    #[must_use]
    pub fn peek(&self, number: u64, key: u64) -> Option<&V> {
        let first = self.first_way(number);
        let keys = &self.keys[first..first + self.ways];
        let way = keys.iter().position(|&k| k == key)?;
        Some(&self.values[first + way])
    }

    /// Mutable access to the value of `key`, which keeps its place in the order of use.
    #[inline]
    pub fn peek_mut(&mut self, number: u64, key: u64) -> Option<&mut V> {
        let first = self.first_way(number);
        let keys = &self.keys[first..first + self.ways];
        let way = keys.iter().position(|&k| k == key)?;
        Some(&mut self.values[first + way])
    }

    /// Enters a key that is not present as the most recently used one, and returns the entry that
    /// had to go.
    #[inline]
    pub fn insert(&mut self, number: u64, key: u64, value: V) -> Option<(u64, V)> {
        debug_assert_ne!(key, EMPTY);
        let first = self.first_way(number);
        let keys = &mut self.keys[first..first + self.ways];
        debug_assert!(!keys.contains(&key), "a key is entered once");
        let values = &mut self.values[first..first + self.ways];
        // Moved one by one: faster than two calls for so few.
        let mut evicted = (key, value);
        for (key, value) in keys.iter_mut().zip(values) {
            evicted.0 = core::mem::replace(key, evicted.0);
            evicted.1 = core::mem::replace(value, evicted.1);
        }
        (evicted.0 != EMPTY).then_some(evicted)
    }

    /// Enters a key that is not present with so many entries behind it, or as the last one of a set that
    /// is not full, and returns the entry that had to go.
    pub fn insert_behind(
        &mut self,
        number: u64,
        key: u64,
        value: V,
        behind: usize,
    ) -> Option<(u64, V)> {
        debug_assert_ne!(key, EMPTY);
        let first = self.first_way(number);
        let keys = &mut self.keys[first..first + self.ways];
        debug_assert!(!keys.contains(&key), "a key is entered once");
        let place = self.ways.saturating_sub(behind + 1);
        let place = keys[..place]
            .iter()
            .position(|&k| k == EMPTY)
            .unwrap_or(place);
        let values = &mut self.values[first + place..first + self.ways];
        let mut evicted = (key, value);
        for (key, value) in keys[place..].iter_mut().zip(values) {
            evicted.0 = core::mem::replace(key, evicted.0);
            evicted.1 = core::mem::replace(value, evicted.1);
        }
        (evicted.0 != EMPTY).then_some(evicted)
    }

    /// The entry of a full set that would have to go, with its key.
    #[inline]
    pub fn least_recent(&mut self, number: u64) -> Option<(u64, &mut V)> {
        let last = self.first_way(number) + self.ways - 1;
        let key = self.keys[last];
        (key != EMPTY).then(|| (key, &mut self.values[last]))
    }

    /// The entries of a set, most recently used first.
    pub fn set(&self, number: u64) -> impl Iterator<Item = (u64, &V)> {
        let first = self.first_way(number);
        let ways = first..first + self.ways;
        let entries = self.keys[ways.clone()]
            .iter()
            .copied()
            .zip(&self.values[ways]);
        entries.filter(|(key, _)| *key != EMPTY)
    }

    /// Removes `key` and returns its value.
    pub fn remove(&mut self, number: u64, key: u64) -> Option<V> {
        self.update(number, key, |value| (*value, false))
    }

    /// Changes the value of `key`, which keeps its place in the order of use, or is removed where
    /// `change` says that it does not stay.
    #[inline]
    pub fn update<T>(
        &mut self,
        number: u64,
        key: u64,
        change: impl FnOnce(&mut V) -> (T, bool),
    ) -> Option<T> {
        let first = self.first_way(number);
        let keys = &self.keys[first..first + self.ways];
        let way = keys.iter().position(|&k| k == key)?;
        let (result, stays) = change(&mut self.values[first + way]);
        if !stays {
            self.close_gap(first, way);
        }
        Some(result)
    }

    /// Removes every entry for which `unwanted` holds.
    pub fn remove_if(&mut self, mut unwanted: impl FnMut(u64, &V) -> bool) {
        for first in (0..self.keys.len()).step_by(self.ways) {
            let mut way = 0;
            while way < self.ways && self.keys[first + way] != EMPTY {
                if unwanted(self.keys[first + way], &self.values[first + way]) {
                    self.close_gap(first, way);
                } else {
                    way += 1;
                }
            }
        }
    }

    fn close_gap(&mut self, first: usize, way: usize) {
        let (mut key, mut value) = (EMPTY, self.values[first + way]);
        let set = first + way..first + self.ways;
        let keys = &mut self.keys[set.clone()];
        for (k, v) in keys.iter_mut().zip(&mut self.values[set]).rev() {
            key = core::mem::replace(k, key);
            value = core::mem::replace(v, value);
        }
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.keys.fill(EMPTY);
    }

    /// All entries, set by set, most recently used first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        let entries = self.keys.iter().copied().zip(&self.values);
        entries.filter(|(key, _)| *key != EMPTY)
    }

    /// Checks that no set holds a key twice or has a gap.
    ///
    /// # Errors
    /// A sentence that names the set.
    pub fn validate(&self) -> Result<(), String> {
        for (set, keys) in self.keys.chunks(self.ways).enumerate() {
            let used = keys.iter().take_while(|&&k| k != EMPTY).count();
            if keys[used..].iter().any(|&k| k != EMPTY) {
                return Err(format!(
                    "set {set} has an entry behind an empty way: {keys:x?}"
                ));
            }
            for way in 1..used {
                if keys[..way].contains(&keys[way]) {
                    return Err(format!("set {set} holds {:#x} twice", keys[way]));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Model of the array as plain lists, most recently used last.
    struct Naive {
        ways: usize,
        sets: Vec<Vec<(u64, u32)>>,
    }

    impl Naive {
        fn set(&mut self, number: u64) -> &mut Vec<(u64, u32)> {
            let index = number as usize % self.sets.len();
            &mut self.sets[index]
        }

        fn lookup(&mut self, key: u64) -> Option<u32> {
            let set = self.set(key);
            let at = set.iter().position(|e| e.0 == key)?;
            let entry = set.remove(at);
            set.push(entry);
            Some(entry.1)
        }

        fn insert(&mut self, key: u64, value: u32) -> Option<(u64, u32)> {
            let ways = self.ways;
            let set = self.set(key);
            set.push((key, value));
            (set.len() > ways).then(|| set.remove(0))
        }

        fn least_recent(&mut self, key: u64) -> Option<(u64, u32)> {
            let ways = self.ways;
            let set = self.set(key);
            (set.len() == ways).then(|| set[0])
        }

        fn insert_behind(&mut self, key: u64, value: u32, behind: usize) -> Option<(u64, u32)> {
            let ways = self.ways;
            let set = self.set(key);
            let evicted = (set.len() == ways).then(|| set.remove(0));
            // Without the one that went, a full set has room for one entry less behind.
            let behind = (behind + set.len() + 1).saturating_sub(ways);
            set.insert(behind.min(set.len()), (key, value));
            evicted
        }
    }

    #[derive(Clone, Debug)]
    enum Operation {
        Use(u64, u32, Option<usize>),
        Remove(u64),
        RemoveMultiples(u64),
        Clear,
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            40 => (0..60u64, any::<u32>(), proptest::option::of(0..6usize))
                .prop_map(|(k, v, behind)| Operation::Use(k, v, behind)),
            4 => (0..60u64).prop_map(Operation::Remove),
            1 => (2..9u64).prop_map(Operation::RemoveMultiples),
            1 => Just(Operation::Clear),
        ]
    }

    proptest! {
        #[test]
        fn the_array_agrees_with_plain_lists(
            sets in 1..9usize, ways in 1..6usize,
            operations in proptest::collection::vec(operation(), 1..400)
        ) {
            let mut array = Sets::new("test", (sets * ways) as u64, ways as u32).unwrap();
            let mut naive = Naive { ways, sets: vec![Vec::new(); sets] };
            for operation in operations {
                match operation {
                    Operation::Use(key, value, behind) => {
                        let expected = naive.lookup(key);
                        let recent = array.most_recent(key, key).copied();
                        let found = array.lookup(key, key).copied();
                        prop_assert_eq!(found, expected);
                        prop_assert!(recent.is_none() || recent == expected);
                        prop_assert_eq!(array.most_recent(key, key).is_some(), expected.is_some());
                        let last = array.least_recent(key).map(|(key, value)| (key, *value));
                        prop_assert_eq!(last, naive.least_recent(key));
                        if expected.is_none() {
                            let (evicted, expected) = match behind {
                                None => (array.insert(key, key, value), naive.insert(key, value)),
                                Some(behind) => (
                                    array.insert_behind(key, key, value, behind),
                                    naive.insert_behind(key, value, behind),
                                ),
                            };
                            prop_assert_eq!(evicted, expected);
                        }
                    }
                    Operation::Remove(key) => {
                        let set = naive.set(key);
                        let at = set.iter().position(|e| e.0 == key);
                        let expected = at.map(|at| set.remove(at).1);
                        prop_assert_eq!(array.remove(key, key), expected);
                    }
                    Operation::RemoveMultiples(n) => {
                        array.remove_if(|key, _| key % n == 0);
                        naive.sets.iter_mut().for_each(|set| set.retain(|e| e.0 % n != 0));
                    }
                    Operation::Clear => {
                        array.clear();
                        naive.sets.iter_mut().for_each(Vec::clear);
                    }
                }
                prop_assert_eq!(array.validate(), Ok(()));
                let contents = naive.sets.iter().flat_map(|set| set.iter().rev().copied());
                let found = array.iter().map(|(key, value)| (key, *value));
                prop_assert!(found.eq(contents));
                let set = naive.sets[0].iter().rev().copied();
                prop_assert!(array.set(0).map(|(key, value)| (key, *value)).eq(set));
            }
        }
    }

    #[test]
    fn entries_that_do_not_divide_into_sets_are_refused() {
        assert!(Sets::<()>::new("l2", 10, 4).is_err());
        assert!(Sets::<()>::new("l2", 0, 4).is_err());
        let error = Sets::<()>::new("l2", 8, 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "l2: 8 entries do not divide into sets of 0 ways"
        );
    }
}
