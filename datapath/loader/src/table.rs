//! One shape for every map that the agent owns: typed entries, and a writer that makes the map
//! equal to what is desired by the smallest difference.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::error::Error;
use crate::sys::RawMap;

/// How a kind of entry lies in its kernel maps: one map, or one per address family.
pub trait Layout {
    /// What an entry is found by.
    type Key: Ord + Clone + fmt::Debug;
    /// What it says.
    type Value: PartialEq + Clone + fmt::Debug;

    /// Names of the maps.
    const MAPS: &'static [&'static str];

    /// Where a key may be: indices into [`Self::MAPS`] and the key's bytes there.
    fn places(key: &Self::Key) -> Vec<(usize, Vec<u8>)>;

    /// Where an entry belongs, its key's bytes and its value's.
    fn encode(key: &Self::Key, value: &Self::Value) -> (usize, Vec<u8>, Vec<u8>);

    /// The entry that these bytes of a map are; `None` if they are not one of ours.
    fn decode(map: usize, key: &[u8], value: &[u8]) -> Option<(Self::Key, Self::Value)>;
}

/// A key and what it says.
pub type Entry<T> = (<T as Layout>::Key, <T as Layout>::Value);

/// Entries of kernel maps in user-facing form. Cheap to clone; all methods take `&self`.
pub struct Table<T: Layout> {
    name: Arc<str>,
    maps: Arc<[RawMap]>,
    layout: PhantomData<fn() -> T>,
}

impl<T: Layout> Clone for Table<T> {
    fn clone(&self) -> Self {
        Self { name: Arc::clone(&self.name), maps: Arc::clone(&self.maps), layout: PhantomData }
    }
}

impl<T: Layout> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<T: Layout> Table<T> {
    pub(crate) fn new(name: &str, maps: Vec<RawMap>) -> Self {
        Self { name: name.into(), maps: maps.into(), layout: PhantomData }
    }

    /// The name of its (first) map.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many entries it has room for.
    pub fn max_entries(&self) -> u32 {
        self.maps.first().map_or(0, |map| map.shape.max_entries)
    }

    fn failed(&self, operation: &'static str, source: std::io::Error) -> Error {
        if source.raw_os_error() == Some(libc::E2BIG) || source.raw_os_error() == Some(libc::ENOSPC)
        {
            return Error::Full { map: self.name.to_string(), max_entries: self.max_entries() };
        }
        Error::Map { operation, map: self.name.to_string(), source }
    }

    /// Every entry, in no order.
    pub fn entries(&self) -> Result<Vec<Entry<T>>, Error> {
        let mut entries = Vec::new();
        for (index, map) in self.maps.iter().enumerate() {
            map.for_each(|key, value| entries.extend(T::decode(index, key, value)))
                .map_err(|source| self.failed("list", source))?;
        }
        Ok(entries)
    }

    /// The value of a key; in a longest-prefix-match table, of the longest prefix that covers it.
    pub fn get(&self, key: &T::Key) -> Result<Option<T::Value>, Error> {
        for (index, bytes) in T::places(key) {
            let found =
                self.maps[index].lookup(&bytes).map_err(|source| self.failed("read", source))?;
            if let Some((_, value)) = found.and_then(|value| T::decode(index, &bytes, &value)) {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Adds an entry or changes it.
    pub fn upsert(&self, key: &T::Key, value: &T::Value) -> Result<(), Error> {
        let (home, bytes, value) = T::encode(key, value);
        self.maps[home].update(&bytes, &value).map_err(|source| self.failed("write", source))?;
        for (index, bytes) in T::places(key).into_iter().filter(|(index, _)| *index != home) {
            self.maps[index].delete(&bytes).map_err(|source| self.failed("remove", source))?;
        }
        Ok(())
    }

    /// Removes an entry; says whether it was there.
    pub fn remove(&self, key: &T::Key) -> Result<bool, Error> {
        let mut there = false;
        for (index, bytes) in T::places(key) {
            there |=
                self.maps[index].delete(&bytes).map_err(|source| self.failed("remove", source))?;
        }
        Ok(there)
    }
}

/// How many entries [`converge`] wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// Entries that were not there.
    pub added: usize,
    /// Entries that said something else.
    pub changed: usize,
    /// Entries that nobody wants.
    pub removed: usize,
}

impl Changes {
    /// Whether the table was right already.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What it takes to make a table say what is desired.
#[derive(Debug)]
struct Difference<'a, K, V> {
    add: Vec<(&'a K, &'a V)>,
    change: Vec<(&'a K, &'a V)>,
    remove: Vec<K>,
}

fn difference<'a, K: Ord, V: PartialEq>(
    present: Vec<(K, V)>,
    desired: impl IntoIterator<Item = (&'a K, &'a V)>,
) -> Difference<'a, K, V> {
    let mut present: BTreeMap<K, V> = present.into_iter().collect();
    let mut difference = Difference { add: Vec::new(), change: Vec::new(), remove: Vec::new() };
    for (key, value) in desired {
        match present.remove(key) {
            None => difference.add.push((key, value)),
            Some(old) if old != *value => difference.change.push((key, value)),
            Some(_) => {}
        }
    }
    difference.remove = present.into_keys().collect();
    difference
}

/// Makes the table equal to `desired`: reads what is there, adds first, then changes, then
/// removes, so that nobody is cut off who is in both.
pub fn converge<'a, T: Layout>(
    table: &Table<T>,
    desired: impl IntoIterator<Item = (&'a T::Key, &'a T::Value)>,
) -> Result<Changes, Error>
where
    T::Key: 'a,
    T::Value: 'a,
{
    let difference = difference(table.entries()?, desired);
    for (key, value) in difference.add.iter().chain(&difference.change) {
        table.upsert(key, value)?;
    }
    for key in &difference.remove {
        table.remove(key)?;
    }
    Ok(Changes {
        added: difference.add.len(),
        changed: difference.change.len(),
        removed: difference.remove.len(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::difference;

    #[test]
    fn the_smallest_difference() {
        let present = vec![(1, 'a'), (2, 'b'), (3, 'c')];
        let desired = BTreeMap::from([(2, 'b'), (3, 'x'), (4, 'd')]);
        let difference = difference(present, &desired);
        assert_eq!(difference.add, [(&4, &'d')]);
        assert_eq!(difference.change, [(&3, &'x')]);
        assert_eq!(difference.remove, [1]);
    }
}
